"""Run a Python program, unchanged, with NumPy's large arrays on an allocator of bigmem's."""

import argparse
import os
from pathlib import Path

import bigmem
from bigmem.cli import _launch, _outputs
from bigmem.cli._allocator import allocator_named
from bigmem.cli._command import Parser


def configure(parser: Parser) -> None:
    """Add the verb's arguments."""
    parser.usage = (
        "%(prog)s [--allocator NAME] [--trace LOG.json] SCRIPT | -m MODULE | -c CODE | - [ARGS]"
    )
    parser.takes_program = True
    parser.add_argument(
        "--allocator",
        metavar="NAME",
        help="system, mapped, dontneed, deferred, recycle, or a plug-in's (default: what "
        "BIGMEM_ALLOCATOR names, else recycle)",
    )
    parser.add_argument(
        "--trace",
        metavar="LOG.json",
        type=Path,
        help="log every allocation and release (bigmem.Traced), for Perfetto and for replays; "
        "with --allocator mapped the log tells what was touched",
    )


def run(arguments: argparse.Namespace) -> int:
    """Become the program: the exit code is its own."""
    allocator_named(arguments.allocator)  # a wrong name is told before it starts
    config: dict[str, object] = {"allocator": arguments.allocator}
    if arguments.trace is not None:
        _outputs.check([arguments.trace])
        if not _outputs.is_replaceable(arguments.trace):
            raise bigmem.BigmemError(
                f"{arguments.trace}: a log is made as a file of its own: no pipe, no device, and "
                "not where the output goes"
            )
        # The program has the number of this process, which it replaces; its children have others.
        config["trace"] = {"path": str(arguments.trace.absolute()), "process": os.getpid()}
    words, environment = _launch.command(arguments.program, config)
    try:
        os.execve(words[0], words, environment)
    except OSError as error:
        raise bigmem.BigmemError(f"cannot start {words[0]}: {error.strerror}") from None
