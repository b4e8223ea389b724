"""Prove that a witness satisfies a circuit; the proof is checked before it is written."""

import argparse
import hashlib
from pathlib import Path

from prover.cli import _options, tell, warn


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    _options.add_proving_options(parser)
    parser.add_argument("witness", metavar="WITNESS.wtns")
    parser.add_argument("proof", metavar="PROOF.json", type=Path)
    parser.add_argument("public", metavar="PUBLIC.json", type=Path)
    parser.add_argument(
        "--no-check", action="store_true", help="write the proof even if it does not verify"
    )
    parser.add_argument(
        "--timings", action="store_true", help="print what each layer of the work took"
    )
    parser.add_argument(
        "--insecure-deterministic",
        metavar="SEED",
        help="for tests only: r and s follow from SEED, so that the proof hides nothing",
    )


def run(arguments: argparse.Namespace) -> int:
    """Make, check and write one proof."""
    import bigmem
    from prover import groth16
    from prover.formats.wtns import Witness
    from prover.formats.zkey import ProvingKey
    from prover.outputs import check_targets
    from prover.pipeline import single
    from prover.pipeline.batch import write

    _options.keep_out_of_core_dumps()
    inputs = {Path(arguments.key).resolve(), Path(arguments.witness).resolve()}
    with bigmem.record_layers() as recorded, bigmem.layer("proof"):
        with bigmem.layer("key check"):
            key = ProvingKey.open(arguments.key)
            witness = Witness.open(arguments.witness)
            groth16.match(key, witness)
            check_targets(arguments.proof, arguments.public, inputs=inputs)
            key.check(threads=arguments.threads)
        r, s = _blinding(arguments.insecure_deterministic, key.curve.r)
        statement = single.prove(
            key,
            witness,
            backend=_options.backend_for(key, arguments),
            allocator=_options.allocator_named(arguments.allocator),
            check=not arguments.no_check,
            r=r,
            s=s,
        )
        with bigmem.layer("write"):
            write(statement, arguments.proof, arguments.public, inputs)
    if not key.has_contribution:
        warn(f"{key.path}: has no contribution (delta is the generator): anyone can forge proofs")
    if arguments.insecure_deterministic is not None:
        warn("r and s follow from the seed: this proof hides nothing and is for tests only")
    if arguments.timings:
        tell(f"{recorded()}\n")
    return 0


def _blinding(seed: str | None, order: int) -> tuple[int | None, int | None]:
    if seed is None:
        return None, None
    r, s = (
        int.from_bytes(hashlib.sha512(f"{name} of {seed}".encode()).digest(), "big") % order
        for name in "rs"
    )
    return r, s
