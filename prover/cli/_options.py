"""Options that several verbs share."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from prover.backends import BACKENDS
from prover.backends.cuda.announce import notify
from prover.errors import UsageError
from prover.secrecy import keep_out_of_core_dumps as keep_out_of_core_dumps

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
    add_backend_options(parser)


def add_backend_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides who does the arithmetic."""
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="auto",
        help="auto: a GPU for large circuits, where there is one",
    )
    parser.add_argument(
        "--device-memory",
        type=size,
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


def size(text: str) -> int:
    """A parser of numbers of bytes such as 4GiB, for argparse."""
    from bigmem import BigmemError
    from bigmem.sizes import parse_size

    try:
        return parse_size(text)
    except BigmemError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def devices(text: str) -> list[int]:
    """A parser of numbers of GPUs with commas between them, for argparse."""
    return [number(0, 999)(part) for part in text.split(",")]


def check_backend_options(arguments: argparse.Namespace) -> None:
    """Refuse options of `add_backend_options` that contradict each other.

    Raises
    ------
    UsageError
    """
    if arguments.backend == "cpu" and arguments.device_memory is not None:
        raise UsageError("--device-memory is of a GPU, which --backend cpu does not use")


def backend_for(key: "ProvingKey", arguments: argparse.Namespace, proofs: int = 1) -> "Backend":
    """The backend that the options of `add_proving_options` ask for, to make so many proofs.

    Raises
    ------
    UnavailableBackend, UsageError
    """
    from prover.backends import get_backend

    check_backend_options(arguments)
    return get_backend(
        arguments.backend,
        threads=arguments.threads,
        domain=key.domain,
        proofs=proofs,
        device_memory=arguments.device_memory,
        notify=notify,
    )


def backends_for(key: "ProvingKey", arguments: argparse.Namespace, proofs: int) -> "list[Backend]":
    """The backends, one a worker, that the options of a batch of so many proofs ask for.

    Raises
    ------
    UnavailableBackend, UsageError
    """
    from prover.backends import get_cuda_backends

    if arguments.devices is None:
        return [backend_for(key, arguments, proofs)]
    if arguments.backend == "cpu":
        raise UsageError("--devices names GPUs, which --backend cpu does not use")
    return get_cuda_backends(
        arguments.devices,
        threads=arguments.threads,
        device_memory=arguments.device_memory,
        notify=notify,
    )


def allocator_named(name: str | None, option: str = "--allocator") -> "bigmem.Allocator":
    """The allocator of a name that ``option`` gave, or the process default.

    Raises
    ------
    UsageError
    """
    import bigmem
    from bigmem.cli import _allocator

    try:
        return _allocator.allocator_named(name, option)
    except bigmem.BigmemError as error:
        raise UsageError(str(error)) from error
