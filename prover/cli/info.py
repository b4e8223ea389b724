"""Tell what a zkey, wtns or r1cs file holds, and check it.

The structure is always checked; witness values are never printed.
"""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prover.cli import one_line

if TYPE_CHECKING:
    from prover.formats.r1cs import R1cs
    from prover.formats.wtns import Witness
    from prover.formats.zkey import ProvingKey


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("file", metavar="FILE")
    parser.add_argument(
        "--check",
        action="store_true",
        help="check every value too, in a key also that every point is in its subgroup",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each fact."""
    from prover.formats.container import Container
    from prover.formats.r1cs import R1cs
    from prover.formats.wtns import Witness
    from prover.formats.zkey import ProvingKey

    container = Container.open(arguments.file)
    facts: Iterator[tuple[str, object]]
    if container.kind == "zkey":
        facts = _key_facts(ProvingKey(container), arguments.check)
    elif container.kind == "wtns":
        facts = _witness_facts(Witness(container))
    else:
        facts = _circuit_facts(R1cs(container), arguments.check)
    # All facts before the first is printed: a refused file is told in one line.
    for name, value in [("file", arguments.file), ("kind", container.kind), *facts]:
        print(f"{name:<18}{one_line(str(value))}")
    return 0


def _key_facts(key: "ProvingKey", check: bool) -> Iterator[tuple[str, object]]:
    if check:
        key.check(subgroups=True)
    yield "curve", key.curve.name
    yield "signals", key.signals
    yield "public", key.public
    yield "domain", key.domain
    yield "coefficients", len(key.coefficients)
    yield "contributions", key.contributions
    if not key.has_contribution:
        yield "warning", "no contribution (delta is the generator): anyone can forge proofs"
    yield "checked", "every value and subgroup" if check else "structure and verification key"


def _witness_facts(witness: "Witness") -> Iterator[tuple[str, object]]:
    yield "curve", witness.curve.name
    yield "signals", len(witness.values)
    yield "checked", "every value"


def _circuit_facts(circuit: "R1cs", check: bool) -> Iterator[tuple[str, object]]:
    if check:
        for _ in circuit.blocks():
            pass
    yield "curve", circuit.curve.name
    yield "constraints", circuit.constraints
    yield "wires", circuit.wires
    yield "outputs", circuit.outputs
    yield "public inputs", circuit.public_inputs
    yield "private inputs", circuit.private_inputs
    yield "labels", circuit.labels
    yield "terms", circuit.terms
    yield "checked", "every value" if check else "structure"
