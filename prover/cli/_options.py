"""Options that several verbs share."""

import argparse
import resource
from typing import TYPE_CHECKING

from prover.backends import BACKENDS
from prover.errors import UsageError

if TYPE_CHECKING:
    import bigmem


def add_proving_options(parser: argparse.ArgumentParser) -> None:
    """Add what `prove` and `batch` have in common."""
    parser.add_argument("key", metavar="CIRCUIT.zkey")
    parser.add_argument(
        "--allocator",
        metavar="NAME",
        help="where a proof's vectors come from: system, mapped, dontneed, deferred, recycle, or "
        "a plug-in's (default: the process default, see BIGMEM_ALLOCATOR)",
    )
    parser.add_argument("--backend", choices=BACKENDS, default="auto")
    parser.add_argument(
        "--threads", type=count, default=0, metavar="N", help="CPU threads; 0: every core"
    )


def count(text: str) -> int:
    """An integer of at least zero, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def allocator_named(name: str | None) -> "bigmem.Allocator":
    """The allocator of a name, or the process default.

    Raises
    ------
    UsageError
    """
    import bigmem

    if name is None:
        return bigmem.get_allocator()
    try:
        return bigmem.make(name)
    except (bigmem.BigmemError, ValueError) as error:
        raise UsageError(f"--allocator {name}: {error}") from None


def keep_out_of_core_dumps() -> None:
    """Write no core file from here on: it would hold the witness."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
