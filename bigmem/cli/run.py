"""Run a Python program, unchanged, with NumPy's large arrays on an allocator of bigmem's."""

import argparse
import os

import bigmem
from bigmem.cli import _launch
from bigmem.cli._allocator import allocator_named
from bigmem.cli._command import Parser


def configure(parser: Parser) -> None:
    """Add the verb's arguments."""
    parser.usage = "%(prog)s [--allocator NAME] SCRIPT | -m MODULE | -c CODE | - [ARGS]"
    parser.takes_program = True
    parser.add_argument(
        "--allocator",
        metavar="NAME",
        help="system, mapped, dontneed, deferred, recycle, or a plug-in's (default: what "
        "BIGMEM_ALLOCATOR names, else recycle)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Become the program: the exit code is its own."""
    allocator_named(arguments.allocator)  # a wrong name is told before it starts
    words, environment = _launch.command(arguments.program, {"allocator": arguments.allocator})
    try:
        os.execve(words[0], words, environment)
    except OSError as error:
        raise bigmem.BigmemError(f"cannot start {words[0]}: {error.strerror}") from None
