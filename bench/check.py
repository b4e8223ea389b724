"""How long the check of one proof takes in this process, its key and files loaded.

    python -m bench.check

Best of many rounds on the test fixtures of each curve: range, curve and subgroup checks, the sum
over the public signals, and the product of four pairings.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bench.machine import summary
from prover.backends.cpu import _cpu
from prover.curves import CURVES
from prover.formats.proof_json import read_proof, read_public
from prover.verify import VerificationKey, verify

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
ROUNDS = 100


def main() -> None:
    """Print one row a fixture."""
    parser = argparse.ArgumentParser(prog="python -m bench.check", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.parse_args()
    print(summary(), f"arithmetic={_cpu.arithmetic()}", sep=", ")
    print(f"{'':<24}{'signals':>8}{'check':>12}{'of it pairings':>16}")
    for curve in CURVES.values():
        for folder in sorted((FIXTURES / curve.name).iterdir()):
            key = VerificationKey.from_json(folder / "verification_key.json")
            public = read_public(folder / "public.json", curve)
            proof = read_proof(folder / "proof.json", curve)
            check = best(partial(verify, key, public, proof))
            g1 = np.concatenate([proof.a, key.alpha1, proof.c, proof.a])
            g2 = np.concatenate([proof.b, key.beta2, key.delta2, key.gamma2])
            pairings = best(partial(_cpu.pairing_product_is_one, curve.name, g1, g2))
            name = f"{curve.title} {folder.name}"
            print(f"{name:<24}{key.public:>8}{check * 1e3:>9.2f} ms{pairings * 1e3:>13.2f} ms")


def best(action: Callable[[], object]) -> float:
    """Seconds of the quickest of many runs."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
