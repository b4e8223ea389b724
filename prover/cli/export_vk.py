"""Write the verification key of a proving key, as snarkjs does."""

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("key", metavar="CIRCUIT.zkey", help="proving key")
    parser.add_argument("output", metavar="VK.json", help="where to write the verification key")


def run(arguments: argparse.Namespace) -> int:
    """Write the file, whole or not at all."""
    from prover.formats.proof_json import write_json
    from prover.formats.zkey import ProvingKey
    from prover.outputs import whole_files
    from prover.verify import VerificationKey

    key = VerificationKey.from_zkey(ProvingKey.open(arguments.key))
    with whole_files(Path(arguments.output), inputs=[Path(arguments.key).resolve()]) as [file]:
        write_json(file, key.to_json())
    return 0
