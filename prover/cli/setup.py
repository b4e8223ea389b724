"""Make a key for a circuit, for development only: whoever runs this could forge proofs."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bigmem.terminal import can_draw
from prover.cli import one_line, tell
from prover.errors import UsageError

if TYPE_CHECKING:
    from prover.formats.r1cs import R1cs
    from prover.setup import Multiples, Progress

_FLAG = "--insecure-dev-key"
_LONG = 1 << 15
"""Domains from this size on take long enough for a progress bar."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("circuit", metavar="CIRCUIT.r1cs")
    parser.add_argument("-o", "--output", metavar="CIRCUIT.zkey", required=True)
    parser.add_argument(
        "--backend",
        choices=("cpu", "cuda"),
        default="cpu",
        help="who computes the points: the CPU, or a GPU, for large circuits",
    )
    parser.add_argument(
        _FLAG,
        dest="insecure",
        action="store_true",
        help="accept that the key is of no use in earnest: one process knew its secrets",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the key, whole or not at all."""
    from prover.formats.r1cs import R1cs
    from prover.outputs import whole_files
    from prover.setup import Trapdoor, domain_size, write_key

    if not arguments.insecure:
        raise UsageError(
            "setup makes keys for development only, for which whoever made them can forge proofs; "
            f"say {_FLAG} if that is what you want"
        )
    circuit = R1cs.open(arguments.circuit)
    domain = domain_size(circuit)
    multiples = _cuda_multiples(circuit) if arguments.backend == "cuda" else None
    _shout(arguments.output)
    inputs = [Path(arguments.circuit).resolve()]
    with (
        whole_files(Path(arguments.output), inputs=inputs) as [file],
        _bar(domain) as progress,
    ):
        trapdoor = Trapdoor.draw(circuit.curve, domain)
        write_key(file, circuit, trapdoor, multiples=multiples, progress=progress)
    return 0


def _cuda_multiples(circuit: "R1cs") -> "Multiples":
    from prover.backends.cuda.announce import notify
    from prover.backends.cuda.device import Device
    from prover.backends.cuda.fixed_base import CudaMultiples

    return CudaMultiples(Device(notify=notify), circuit.curve)


def _shout(output: str) -> None:
    tell(
        "*** INSECURE DEVELOPMENT KEY ***\n"
        f"{one_line(output)}: its secrets exist in this process. Whoever gets hold of them can\n"
        "prove false statements. Never use this key where proofs matter: hold a ceremony instead.\n"
    )


@contextmanager
def _bar(domain: int) -> Iterator["Progress | None"]:
    if domain < _LONG or not can_draw(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    with Bars(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(f"{name:>3} points", total=total)
            bars.update(tasks[name], completed=done)

        yield show
