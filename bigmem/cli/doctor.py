"""Examine this machine: what memory costs here, which release policy fits, what could be changed.

Takes less than 20 seconds and a tenth of the memory that is left.
"""

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bigmem.profile.diagnosis import Diagnosis


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "--json", action="store_true", help="write everything as one JSON object instead"
    )


def run(arguments: argparse.Namespace) -> int:
    """Examine, and write the report."""
    from bigmem.profile.diagnosis import diagnose

    try:
        diagnosis = diagnose(_tell)
    finally:
        _tell("")
    if arguments.json:
        print(json.dumps(diagnosis.as_json(), indent=2, allow_nan=False))
    else:
        _print_report(diagnosis)
    return 0


def _print_report(diagnosis: "Diagnosis") -> None:
    from bigmem.profile import doctor_report
    from bigmem.terminal import can_draw

    if can_draw(sys.stdout):
        doctor_report.print_with_colours(diagnosis)
    else:
        print(doctor_report.plain(diagnosis))


def _tell(doing: str) -> None:
    """Say on the terminal what takes the time, over what was said before; "" takes it away."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    said = f"measuring {doing} ..." if doing else ""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"\r\x1b[K{said}")
        sys.stderr.flush()
