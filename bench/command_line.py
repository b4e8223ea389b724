"""Options that several benches share: what would stop a bench at its end is told at its start."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import machine
from bigmem import BigmemError
from bigmem.cli import _outputs
from bigmem.sizes import parse_size


def count(text: str) -> int:
    """A parser of whole numbers from one, for argparse."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


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
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no part of one: give 0 to 1")
    return value


def size(text: str) -> int:
    """A parser of numbers of bytes such as 4GiB, for argparse."""
    try:
        return parse_size(text)
    except BigmemError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def result_file(text: str) -> Path:
    """A parser of files that can be written, for argparse; what is there stays as it is."""
    path = Path(text)
    try:
        _outputs.check([path])
    except BigmemError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


def folder(text: str) -> Path:
    """A parser of folders, which are made, for argparse."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise argparse.ArgumentTypeError(f"{text}: cannot be made a folder: {reason}") from None
    return path


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Add what `write_results` goes by."""
    for name, what in (("--json", "figures"), ("--markdown", "tables")):
        parser.add_argument(
            name, type=result_file, metavar="FILE", help=f"write the {what} there too"
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
