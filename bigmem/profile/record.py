"""What the ledger of a profiled program has left, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bigmem.errors import BigmemError

_MAGIC = b"bmledgr1"
_TEXT = np.dtype([("offset", np.uint32), ("length", np.uint32)])
# As in bigmem/_core/ledger_file.hpp.
_HEADER = np.dtype(
    [
        ("magic", "S8"),
        *((name, np.uint64) for name in ("process", "ended", "tells_huge")),
        *((name, np.float64) for name in ("begin", "end")),
        *((name, np.uint64) for name in ("faults_at_begin", "faults_at_end")),
        *((name, np.uint64) for name in ("live", "peak", "fresh")),
        *(
            (table + part, np.uint64)
            for table in ("lines", "events", "threads", "stalls", "text")
            for part in ("_at", "", "_room")
        ),
    ]
)
_LINE = np.dtype(
    [
        ("file", _TEXT),
        *((name, np.uint64) for name in ("line", "calls", "bytes")),
        *((name, np.float64) for name in ("alloc_s", "free_s", "gil_free_s")),
        *((name, np.uint64) for name in ("releases", "released_bytes", "looks")),
        *((name, np.uint64) for name in ("looked_at_bytes", "faulted_small", "faulted_huge")),
        *((name, np.uint64) for name in ("touched_small", "touched_huge")),
    ]
)
_EVENT = np.dtype(
    [
        *((name, np.float64) for name in ("begin", "seconds")),
        *((name, np.uint64) for name in ("nbytes", "live")),
        ("name", _TEXT),
        *((name, np.uint32) for name in ("kind", "line")),
        ("thread", np.uint64),
    ]
)
_THREAD = np.dtype([("thread", np.uint64), ("name", _TEXT)])
_STALL = np.dtype(
    [
        *((name, np.float64) for name in ("begin", "seconds")),
        ("thread", np.uint64),
        ("mechanism", "S8"),
    ]
)

ALLOCATION, RELEASE, LAYER, RESIZE = range(4)
"""Kinds of an event."""


@dataclass(frozen=True, slots=True)
class LineRecord:
    """What one source line allocated, as counted; times in seconds.

    Attributes
    ----------
    file, line
        Of the program; empty and 0 where no Python code ran.
    calls, bytes
        Arrays, and what they asked for: one that grows stays one.
    alloc_s, free_s
        Time in allocating and resizing, and in releasing the same blocks, on whatever thread.
    gil_free_s
        The part of `free_s` with the GIL held.
    faulted_small, faulted_huge
        Pages of 4 KiB and of 2 MiB that came into memory while the blocks lived: estimates where
        not every block was looked at.
    touched_small, touched_huge
        Pages that were in memory at the end of the blocks' lives; estimates likewise.
    """

    file: str
    line: int
    calls: int
    bytes: int
    alloc_s: float
    free_s: float
    gil_free_s: float
    faulted_small: float
    faulted_huge: float
    touched_small: float
    touched_huge: float


@dataclass(frozen=True, slots=True)
class Event:
    """One allocation, release, resize or call of a layer; times in seconds of the monotonic clock.

    `name` is that of a layer, or the place of the line that allocated; `live` the bytes in use
    after the event; `task` the asyncio task of a layer, 0 outside of any.
    """

    kind: int
    begin: float
    seconds: float
    thread: int
    name: str
    nbytes: int
    live: int
    task: int


@dataclass(frozen=True, slots=True)
class Stall:
    """A call of CUDA's driver that may have made the whole process wait for a GPU.

    Times are in seconds of the monotonic clock; `mechanism` is that of the pinned memory.
    """

    begin: float
    seconds: float
    thread: int
    mechanism: str


@dataclass(frozen=True, slots=True)
class Record:
    """All that was counted.

    Attributes
    ----------
    ended
        Whether the program came to its end. If it was killed or left by ``os._exit``, `end` and
        `minor_faults` are unknown, and blocks in use have not been looked at.
    tells_huge
        Whether huge pages are counted apart; if not, each counts as 512 small ones.
    begin, end
        When counting began and ended, in seconds of the monotonic clock.
    faults_at_begin
        Minor faults of the process until `begin`.
    minor_faults
        Those between `begin` and `end`.
    peak, fresh
        The most bytes in use at once; the bytes by which allocations went beyond all before.
    events_left_out
        How many events and stalls found no room; the latest are there.
    layers
        As `dataclasses.asdict` makes it of `bigmem.layers`; `None` if none was used.
    """

    ended: bool
    tells_huge: bool
    begin: float
    end: float
    faults_at_begin: int
    minor_faults: int
    peak: int
    fresh: int
    lines: tuple[LineRecord, ...]
    events: tuple[Event, ...]
    events_left_out: int
    stalls: tuple[Stall, ...]
    threads: dict[int, str]
    layers: dict[str, Any] | None


def read(path: str | Path) -> Record | None:
    """The record in a file; `None` if no ledger was ever opened there.

    Raises
    ------
    BigmemError
        It is no such file.
    """
    data = Path(path).read_bytes()
    if not data:
        return None
    if len(data) < _HEADER.itemsize or not data.startswith(_MAGIC):
        raise BigmemError(f"{path} is no ledger of bigmem")
    tables = _Tables(data)
    head = tables.head
    rows = tables.rows("lines", _LINE, head["lines"])
    lines = tuple(_line(tables, row) for row in rows)
    ended = bool(head["ended"])
    return Record(
        ended=ended,
        tells_huge=bool(head["tells_huge"]),
        begin=head["begin"],
        end=head["end"],
        faults_at_begin=head["faults_at_begin"],
        minor_faults=head["faults_at_end"] - head["faults_at_begin"] if ended else 0,
        peak=head["peak"],
        fresh=head["fresh"],
        lines=tuple(line for line in lines if line.calls),
        events=_events(tables, lines),
        events_left_out=sum(
            max(head[table] - head[f"{table}_room"], 0) for table in ("events", "stalls")
        ),
        stalls=_stalls(tables),
        threads={
            row["thread"]: tables.text(row["name"])
            for row in tables.rows("threads", _THREAD, head["threads"])
        },
        layers=json.loads(data[tables.end :]) if len(data) > tables.end else None,
    )


class _Tables:
    """The parts of a ledger's file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        names = _HEADER.names or ()
        values = np.frombuffer(data, _HEADER, 1)[0].item()
        self.head: dict[str, Any] = dict(zip(names, values, strict=True))
        self.end: int = self.head["text_at"] + self.head["text_room"]

    def rows(self, table: str, dtype: np.dtype[Any], count: int) -> list[dict[str, Any]]:
        array = np.frombuffer(self._data, dtype, count, self.head[f"{table}_at"])
        return [dict(zip(dtype.names or (), row, strict=True)) for row in array.tolist()]

    def text(self, piece: tuple[int, int]) -> str:
        begin = self.head["text_at"] + piece[0]
        return self._data[begin : begin + piece[1]].decode("utf-8", "surrogatepass")


def _line(tables: _Tables, row: dict[str, Any]) -> LineRecord:
    known = row["looked_at_bytes"]
    scale = row["released_bytes"] / known if known else 0.0
    return LineRecord(
        file=tables.text(row["file"]),
        line=row["line"],
        calls=row["calls"],
        bytes=row["bytes"],
        alloc_s=row["alloc_s"],
        free_s=row["free_s"],
        gil_free_s=row["gil_free_s"],
        faulted_small=row["faulted_small"] * scale,
        faulted_huge=row["faulted_huge"] * scale,
        touched_small=row["touched_small"] * scale,
        touched_huge=row["touched_huge"] * scale,
    )


def _events(tables: _Tables, lines: tuple[LineRecord, ...]) -> tuple[Event, ...]:
    head = tables.head
    kept = min(head["events"], head["events_room"])
    rows = tables.rows("events", _EVENT, kept)
    rows.sort(key=lambda row: row["begin"])
    return tuple(
        Event(
            kind=row["kind"],
            begin=row["begin"],
            seconds=row["seconds"],
            thread=row["thread"],
            name=tables.text(row["name"]) if row["kind"] == LAYER else place(lines[row["line"]]),
            nbytes=0 if row["kind"] == LAYER else row["nbytes"],
            live=row["live"],
            task=row["nbytes"] if row["kind"] == LAYER else 0,
        )
        for row in rows
    )


def _stalls(tables: _Tables) -> tuple[Stall, ...]:
    head = tables.head
    kept = min(head["stalls"], head["stalls_room"])
    rows = tables.rows("stalls", _STALL, kept)
    rows.sort(key=lambda row: row["begin"])
    return tuple(
        Stall(row["begin"], row["seconds"], row["thread"], row["mechanism"].decode())
        for row in rows
    )


def place(line: LineRecord, file: str = "") -> str:
    """How reports name a line, by its file or a shorter name of that."""
    return f"{file or line.file}:{line.line}" if line.file else "elsewhere"
