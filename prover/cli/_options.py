"""Options that several verbs share."""

import argparse
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

from bigmem.cli._command import tell
from prover.backends import BACKENDS
from prover.errors import UsageError

if TYPE_CHECKING:
    import bigmem
    from prover.backends.base import Backend
    from prover.formats.zkey import ProvingKey


def add_proving_options(parser: argparse.ArgumentParser) -> None:
    """Add what `prove` and `batch` have in common."""
    parser.add_argument("key", metavar="CIRCUIT.zkey")
    parser.add_argument(
        "--allocator",
        metavar="NAME",
        help="where a proof's vectors come from: system, mapped, dontneed, deferred, recycle, or "
        "a plug-in's (default: the process default, see BIGMEM_ALLOCATOR)",
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="auto",
        help="auto: a GPU for large circuits, where there is one",
    )
    parser.add_argument(
        "--device-memory",
        type=_size,
        metavar="LIMIT",
        help="GPU memory to use at most, for example 4GiB; a key that does not fit is streamed "
        "(default: nearly all that is free)",
    )
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


def _size(text: str) -> int:
    from bigmem import BigmemError
    from bigmem.sizes import parse_size

    try:
        return parse_size(text)
    except BigmemError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def backend_for(key: "ProvingKey", arguments: argparse.Namespace) -> "Backend":
    """The backend that the options of `add_proving_options` ask for.

    Raises
    ------
    UnavailableBackend
    """
    from prover.backends import get_backend

    return get_backend(
        arguments.backend,
        threads=arguments.threads,
        domain=key.domain,
        device_memory=arguments.device_memory,
        notify=lambda line: tell(f"{line}\n"),
    )


def allocator_named(name: str | None) -> "bigmem.Allocator":
    """The allocator of a name, or the process default.

    Raises
    ------
    UsageError
    """
    import bigmem

    try:
        return bigmem.get_allocator() if name is None else bigmem.make(name)
    except (bigmem.BigmemError, ValueError) as error:
        source = "the default allocator" if name is None else f"--allocator {name}"
        raise UsageError(f"{source}: {error}") from None


def keep_out_of_core_dumps() -> None:
    """Let no core be dumped from here on: it would hold the witness.

    A limit of 0 stops files only. Of 1, which is too small for any file, Linux also starts no
    program that a machine pipes cores to.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    soft = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
