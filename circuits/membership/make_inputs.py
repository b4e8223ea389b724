"""Writes the round constants of the circuit and the inputs of its example witnesses.

The permutation is computed a second time here, in plain Python: the witness calculator, which
refuses inputs whose root does not match, thereby checks the circuit against this file.

    python make_inputs.py DIRECTORY
"""

import hashlib
import json
import random
import sys
from pathlib import Path

R = 21888242871839275222246405745257275088548364400416034343698204186575808495617  # BN254
ROUNDS, DEPTH, PAYMENTS, WIDTH, PACKED = 110, 20, 120, 40, 6


def from_hash(label: str) -> int:
    """Read the SHA-512 of a label as a big-endian integer, modulo r."""
    return int.from_bytes(hashlib.sha512(label.encode()).digest(), "big") % R


CONSTANTS = [from_hash(f"bigmem membership round {i}") for i in range(ROUNDS)]


def compress(left: int, right: int) -> int:
    state = right
    for constant in CONSTANTS:
        state = pow(state + left + constant, 5, R)
    return (state + left + left + right) % R


def digest(message: list[int]) -> int:
    state = len(message)
    for word in message:
        state = compress(state, word)
    return state


def example(seed: int) -> dict[str, object]:
    """A member with random payments somewhere in a registry of random neighbours."""
    source = random.Random(seed)
    secret, context = source.randrange(R), source.randrange(R)
    limit = (1 << WIDTH) - 1 - source.randrange(1 << 20)
    payments = [source.randrange(limit + 1) >> source.randrange(WIDTH) for _ in range(PAYMENTS)]
    blocks = [
        sum(amount << (WIDTH * i) for i, amount in enumerate(payments[b : b + PACKED]))
        for b in range(0, PAYMENTS, PACKED)
    ]
    position = [source.randrange(2) for _ in range(DEPTH)]
    sibling = [source.randrange(R) for _ in range(DEPTH)]
    node = digest([secret, digest(blocks)])
    for side, neighbour in zip(position, sibling, strict=True):
        node = compress(neighbour, node) if side else compress(node, neighbour)
    return {
        "root": str(node),
        "context": str(context),
        "threshold": str(sum(payments) - source.randrange(1 << 16)),
        "limit": str(limit),
        "secret": str(secret),
        "payment": [str(amount) for amount in payments],
        "sibling": [str(neighbour) for neighbour in sibling],
        "position": [str(side) for side in position],
    }


def main(directory: Path) -> None:
    lines = [
        "pragma circom 2.1.6;",
        "",
        "// Made by make_inputs.py: SHA-512 of 'bigmem membership round I', modulo r of BN254.",
        "function round_constant(i) {",
        f"    var c[{ROUNDS}] = [",
        ",\n".join(f"        {constant}" for constant in CONSTANTS),
        "    ];",
        "    return c[i];",
        "}",
    ]
    (directory / "round_constants.circom").write_text("\n".join(lines) + "\n")
    for number in range(1, 4):
        text = json.dumps(example(number), indent=1)
        (directory / f"input_{number}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
