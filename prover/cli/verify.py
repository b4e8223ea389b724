"""Check a proof: exit 0 if it is valid, 1 if it is false, 2 if the files cannot be used."""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("key", metavar="VK.json", help="verification key")
    parser.add_argument("public", metavar="PUBLIC.json", help="public signals")
    parser.add_argument("proof", metavar="PROOF.json")


def run(arguments: argparse.Namespace) -> int:
    """Print the verdict."""
    from prover.formats.proof_json import read_proof, read_public
    from prover.verify import VerificationKey, verify

    key = VerificationKey.from_json(arguments.key)
    public = read_public(arguments.public, key.curve)
    proof = read_proof(arguments.proof, key.curve)
    valid = verify(key, public, proof)
    print("valid" if valid else "invalid: the proof does not prove these public signals")
    return 0 if valid else 1
