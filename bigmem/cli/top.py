"""Watch another process's allocators: what is live, pending, warm and clean in it.

The process must have been started with BIGMEM_TOP=1 in its environment.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from bigmem.terminal import can_draw

if TYPE_CHECKING:
    from bigmem.exporters.reader import Watched

_SECONDS = 0.25


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.description = (
        "Watch the allocators of a process that was started with BIGMEM_TOP=1, until it ends or "
        "Ctrl-C; where the output is no terminal, show them once."
    )
    parser.add_argument("process", metavar="PID", type=_number)
    parser.add_argument("--json", action="store_true", help="write one snapshot as JSON instead")


def run(arguments: argparse.Namespace) -> int:
    """Show it, once or until it ends."""
    from bigmem.exporters import view
    from bigmem.exporters.reader import Watched

    with Watched(arguments.process) as watched:
        if arguments.json:
            print(json.dumps(watched.read(), indent=2, allow_nan=False))
        elif can_draw(sys.stdout):
            _watch(watched)
        else:
            print(view.plain(watched.read()))
    return 0


def _watch(watched: Watched) -> None:
    from rich.live import Live

    from bigmem.exporters import view

    try:
        with Live(view.table(watched.read()), auto_refresh=False) as screen:
            while watched.wait(_SECONDS):
                screen.update(view.table(watched.read()), refresh=True)
    except KeyboardInterrupt:  # how one leaves it, from the first table on
        return
    print(f"process {watched.process} has ended")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 10:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of a process")
    return int(text)
