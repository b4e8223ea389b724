"""Options that several benches share: what would stop a bench at its end is told at its start."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench import machine
from bigmem import BigmemError, osmem
from bigmem.cli import _outputs
from bigmem.sizes import format_size, parse_size


def count(text: str) -> int:
    """A parser of whole numbers from one, for argparse."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def log2(text: str) -> int:
    """A parser of binary logarithms of domains, for argparse."""
    if not (text.isascii() and text.isdecimal()) or not 5 <= int(text) <= 27:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 5 to 27")
    return int(text)


def at_least(least: int, parse: Callable[[str], int] = count) -> Callable[[str], int]:
    """A parser that refuses what is too little to measure, for argparse."""

    def parse_enough(text: str) -> int:
        value = parse(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is less than {least}, the least there is")
        return value

    return parse_enough


def amount(text: str) -> float:
    """A parser of numbers above zero, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def share(text: str) -> float:
    """A parser of parts of one, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no part of one: give 0 to 1")
    return value


def size(text: str) -> int:
    """A parser of numbers of bytes such as 4GiB, for argparse."""
    try:
        nbytes = parse_size(text)
    except BigmemError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size above 0")
    return nbytes


def memory(text: str) -> int:
    """A parser of numbers of bytes that the machine has free, for argparse."""
    return int(_free(text, size(text)))


def gib(text: str) -> float:
    """A parser of numbers of GiB that the machine has free, for argparse."""
    return _free(text, amount(text) * machine.GIB) / machine.GIB


def mib(text: str) -> float:
    """A parser of numbers of MiB that the machine has free, for argparse."""
    return _free(text, amount(text) * machine.MIB) / machine.MIB


def _free(text: str, nbytes: float) -> float:
    available = osmem.available_bytes()
    if nbytes > available:
        raise argparse.ArgumentTypeError(
            f"{text} is more than the {format_size(available)} of memory that are free"
        )
    return nbytes


def result_file(text: str) -> Path:
    """A parser of files that can be written, for argparse; what is there stays as it is."""
    path = Path(text)
    try:
        _outputs.check([path])
    except BigmemError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


@contextmanager
def made(parser: argparse.ArgumentParser, path: Path) -> Iterator[Path]:
    """Make a folder; what cannot be written there ends the program with a line."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield path
    except OSError as error:
        parser.exit(1, f"{path}: cannot be written: {error.strerror}\n")


def folder(text: str) -> Path:
    """A parser of folders that are there or can be made, for argparse; what is there stays."""
    path = Path(text)
    missing = [one for one in (path, *path.parents) if not os.path.lexists(one)]
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise argparse.ArgumentTypeError(f"{text}: cannot be written: permission denied")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise argparse.ArgumentTypeError(f"{text}: cannot be made a folder: {reason}") from None
    finally:  # the next word may be refused
        for made in missing:
            with suppress(OSError, ValueError):
                made.rmdir()
    return path


class Distinct(argparse.Action):
    """Keeps one of each of the values of an option, in their order."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the option."""
        setattr(namespace, self.dest, list(dict.fromkeys(values)))


class _Results(argparse.Action):
    """Keeps a file of `write_results`, which has to be another than the other one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Set the option."""
        setattr(namespace, self.dest, values)
        try:
            _outputs.check([path for path in (namespace.json, namespace.markdown) if path])
        except BigmemError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Add what `write_results` goes by."""
    for name, what in (("--json", "figures"), ("--markdown", "tables")):
        parser.add_argument(
            name, type=Path, action=_Results, metavar="FILE", help=f"write the {what} there too"
        )


def write_results(arguments: argparse.Namespace, figures: Mapping[str, Any], page: str) -> None:
    """Write the figures, with the machine's description, and the page where they were asked for."""
    if arguments.json:
        content = {"machine": machine.describe(), **figures}
        write(arguments.json, json.dumps(content, indent=1) + "\n")
    if arguments.markdown:
        write(arguments.markdown, page)


def write(path: Path, text: str) -> None:
    """Write a file whole, or say in a line why not and end."""
    try:
        _outputs.write(path, [text.encode()])
    except BigmemError as error:
        raise SystemExit(str(error)) from None
