"""Snapshots for people: as text, and as a table that a terminal keeps up to date (rich)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bigmem.exporters.snapshot import Figures, Snapshot, snapshot
from bigmem.sizes import format_size
from bigmem.terminal import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_STATES = ("live", "pending", "reclaiming", "warm", "lazy", "clean")
_HEADS = ("", *_STATES, "allocations", "warm hits")
_SECONDS = 0.5
# Figures that are older are said to be: the process does not come to telling them.
_FRESH = 2.0


def title(shown: Snapshot) -> str:
    """Whose figures they are, and how old if they are not fresh."""
    age = time.time() - shown["time"]
    told = f"process {shown['process']}: {format_size(shown['resident'])} in memory"
    return told if age < _FRESH else f"{told}; figures of {age:.0f} s ago"


def rows(shown: Snapshot) -> list[list[str]]:
    """The head, a row an allocator, and one for all."""
    named = [*shown["allocators"].items(), ("all", shown["total"])]
    return [[*_HEADS], *([one_line(name), *_cells(figures)] for name, figures in named)]


def failures(shown: Snapshot) -> list[str]:
    """A line for each allocator that could not be asked."""
    return [
        f"{one_line(name)} cannot tell its figures: {one_line(told)}"
        for name, told in shown["errors"].items()
    ]


def plain(shown: Snapshot) -> str:
    """Lines of text."""
    lines = rows(shown)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        [
            title(shown),
            *(
                "  ".join(
                    [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
                ).rstrip()
                for line in lines
            ),
            *failures(shown),
        ]
    )


def table(shown: Snapshot) -> Table:
    """The same for rich."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    heads, *body = rows(shown)
    made = Table(
        title=Text(title(shown)),
        title_justify="left",
        caption=Text("\n".join(failures(shown))),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
    )
    for number, head in enumerate(heads):
        made.add_column(head, justify="right" if number else "left")
    for line in body:
        made.add_row(*map(Text, line))
    return made


@contextmanager
def live_view(console: Console | None = None) -> Iterator[None]:
    """Show this process's allocators on the terminal while the block runs; needs rich.

    Parameters
    ----------
    console
        Where; the standard error by default.
    """
    from rich.console import Console
    from rich.live import Live

    with Live(
        get_renderable=lambda: table(snapshot()),
        console=console or Console(stderr=True),
        refresh_per_second=1 / _SECONDS,
    ):
        yield


def _cells(figures: Figures) -> Iterator[str]:
    for state in _STATES:
        nbytes = int(figures.get(state, 0))
        yield format_size(nbytes) if nbytes else "0"
    made = figures.get("allocations", 0)
    yield f"{made:,}"
    hits = figures.get("warm_hits", 0)
    # Whatever a page may tell, no share is beyond all.
    yield f"{hits / made:.0%}" if made and 0 <= hits <= made else ""
