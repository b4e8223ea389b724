"""The report of a profile, as text."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bigmem.profile.account import Account, LineAccount
from bigmem.profile.prices import Prices
from bigmem.profile.record import Record, place
from bigmem.profile.savings import Saving, savings
from bigmem.terminal import can_draw, one_line

_WORST = 10
_LONGEST_CODE = 60
_LITTLE = 0.01


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: a table whose last column is text, the others figures."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def sections(
    found: Account, prices: Prices, counted: Record, allocator: str | None
) -> Iterator[Section]:
    """All parts of the report.

    Parameters
    ----------
    found, prices
        The tax, and what it is reckoned with.
    counted
        What was counted.
    allocator
        What the program ran on; `None` for NumPy's own, where a policy may have something to save.
    """
    yield _totals(found, prices, allocator)
    if found.lines:
        yield _worst(found)
    if found.lines and allocator is None:
        yield _savings(savings(found), found.wall_s)
    if counted.layers is not None:
        yield _layers(counted.layers)


def write(parts: Sequence[Section], stream: TextIO) -> None:
    """Write the report, in colours on a terminal where rich is installed."""
    if can_draw(stream):
        _write_in_colours(parts, stream)
    else:
        stream.write(plain(parts))
    stream.flush()


def plain(parts: Sequence[Section]) -> str:
    """The report as plain text."""
    lines: list[str] = []
    for part in parts:
        rows = [part.head, *part.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(part.head) - 1)]
        lines += ["", part.title]
        for *figures, text in rows:
            cells = (figure.rjust(width) for figure, width in zip(figures, widths, strict=True))
            lines.append("  ".join(("", *cells, text)).rstrip())
        lines += [f"  {note}" for note in part.notes]
    return "\n".join([*lines, ""])


def _write_in_colours(parts: Sequence[Section], stream: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream)
    for part in parts:
        table = Table(box=SIMPLE_HEAD, title=Text(part.title), title_justify="left")
        for heading in part.head[:-1]:
            table.add_column(Text(heading), justify="right", no_wrap=True)
        table.add_column(Text(part.head[-1]), overflow="fold")
        for row in part.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
        for note in part.notes:
            console.print(Text(f"  {note}", style="dim"))


def _totals(found: Account, prices: Prices, allocator: str | None) -> Section:
    faults = f"faulting: {found.minor_faults:,} minor faults"
    if found.outside_fault_s >= 0.001:
        faults += f", {found.outside_fault_s:.3f} s of them outside large arrays"
    rows = [
        (f"{found.alloc_s:.3f}", f"allocating: {found.calls:,} arrays, {_size(found.bytes)}"),
        (f"{found.fault_s:.3f}", faults),
        (f"{found.free_s:.3f}", f"freeing: {found.gil_free_s:.3f} s with the GIL held"),
        (f"{found.tax_s:.3f}", f"memory tax: {found.share:.1%} of the wall time"),
        (f"{found.wall_s:.3f}", f"wall time; at most {_size(found.peak)} of arrays at once"),
    ]
    huge = f"{prices.huge.fault_s * 1e6:.0f} us" + ("" if prices.huge_measured else " (a guess)")
    price = f"{prices.small.fault_s * 1e6:.2f} us, for 2 MiB {huge}"
    note = f"Faults are estimated: one for 4 KiB costs {price} on this machine, beyond the writing."
    title = "The memory tax" if allocator is None else f"The memory tax that is left: {allocator}"
    return Section(title, ("seconds", ""), rows, [note])


def _worst(found: Account) -> Section:
    lines = [line for line in found.lines[:_WORST] if line.tax_s >= 0.0005] or found.lines[:1]
    head = ("seconds", "alloc", "fault", "free", "arrays", "bytes", "line")
    more = len(found.lines) - len(lines)
    notes = [f"... and {more} more with less"] if more else []
    return Section("The worst lines", head, [_line(line) for line in lines], notes)


def _line(line: LineAccount) -> tuple[str, ...]:
    record = line.record
    figures = (line.tax_s, record.alloc_s, line.fault_s, record.free_s)
    code = ""
    with suppress(ValueError):  # a made-up name, of code made on the fly, need not be fit for files
        code = linecache.getline(record.file, record.line).strip()
    if len(code) > _LONGEST_CODE:
        code = f"{code[: _LONGEST_CODE - 3]}..."
    text = "  ".join(filter(None, (place(record, _short(record.file)), code)))
    counts = (f"{record.calls:,}", _size(record.bytes))
    return (*map(_seconds, figures), *counts, one_line(text))


def _savings(estimates: Sequence[Saving], wall_s: float) -> Section:
    rows = [
        (*(_seconds(s) for s in (each.saved_s, each.fault_s, each.free_s)), each.policy)
        for each in estimates
    ]
    notes = ["Estimates; bigmem run --allocator NAME runs the program so, unchanged."]
    if all(each.saved_s < _LITTLE * wall_s for each in estimates):
        notes.insert(0, f"No policy saves {_LITTLE:.0%} of the wall time.")
    head = ("saved", "fault", "free", "policy")
    return Section("What each release policy would save, in seconds", head, rows, notes)


def _layers(tree: dict[str, Any]) -> Section:
    rows = list(_layer_rows(tree["layers"], 0))
    head = ("calls", "wall", "inside", "gap", "layer")
    note = "gap: time of a layer that the layers inside it do not account for"
    return Section("Layers, in seconds", head, rows, [note])


def _layer_rows(layers: Sequence[dict[str, Any]], depth: int) -> Iterator[tuple[str, ...]]:
    for layer in layers:
        inside = layer["layers"]
        gaps = (f"{layer['inner_s']:.3f}", f"{layer['gap_s']:.3f}") if inside else ("", "")
        name = one_line(layer["name"])
        yield (f"{layer['calls']:,}", f"{layer['wall_s']:.3f}", *gaps, f"{'  ' * depth}{name}")
        yield from _layer_rows(inside, depth + 1)


def _short(file: str) -> str:
    """The file as one would name it from here."""
    if not file:
        return file
    try:
        relative = os.path.relpath(file) if Path(file).is_absolute() else file
    except OSError:  # the program has removed the directory that we are in
        return file
    return file if relative.startswith("..") else relative


def _seconds(seconds: float) -> str:
    return f"{seconds:z.3f}"  # z: no minus before a zero


def _size(nbytes: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while nbytes >= 1024 and len(units) > 1:
        nbytes /= 1024
        del units[0]
    return f"{nbytes:.0f} B" if units[0] == "B" else f"{nbytes:.1f} {units[0]}"
