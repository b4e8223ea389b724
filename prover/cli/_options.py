"""Options that several verbs share."""

import argparse
import resource
from collections.abc import Callable
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
        "--threads",
        type=number(0, 1024),
        default=0,
        metavar="N",
        help="CPU threads; 0: every core",
    )


def number(least: int, most: int) -> Callable[[str], int]:
    """A parser of integers in decimal digits from ``least`` to ``most``, for argparse."""

    def parse(text: str) -> int:
        digits = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
        if not digits or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return parse


def allocator_named(name: str | None) -> "bigmem.Allocator":
    """The allocator of a name, or the process default.

    Raises
    ------
    UsageError
    """
    import bigmem
    from bigmem.cli import _allocator

    try:
        return _allocator.allocator_named(name)
    except bigmem.BigmemError as error:
        raise UsageError(str(error)) from error


def keep_out_of_core_dumps() -> None:
    """Let no core be dumped from here on: it would hold the witness.

    A limit of 0 stops files only. Of 1, which is too small for any file, Linux also starts no
    program that a machine pipes cores to.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    soft = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
