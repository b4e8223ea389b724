"""A run as a trace in the Chrome format, which Perfetto (https://ui.perfetto.dev) opens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bigmem.profile.record import ALLOCATION, LAYER, RELEASE, RESIZE, Event, Record

_NAMES = {ALLOCATION: "allocate", RELEASE: "release", RESIZE: "resize"}


def trace(
    record: Record | None,
    *,
    process: int,
    name: str,
    begin: float,
    resident: Sequence[tuple[float, int]],
    held: Sequence[tuple[float, Mapping[str, int]]] = (),
) -> Iterator[str]:
    """The pieces of the JSON text, one event a line.

    Parameters
    ----------
    record
        What was counted; `None` if NumPy was never imported.
    process, name
        The program's number, and what the trace calls it.
    begin
        When it began, in seconds of the monotonic clock: the trace's zero.
    resident
        Times, and the program's bytes in memory.
    held
        Times, and what bigmem's allocators held in the program, in bytes by state.
    """
    left_out = record.events_left_out if record else 0
    other = {"events_left_out": left_out}
    head = json.dumps({"displayTimeUnit": "ms", "otherData": other})
    yield f'{head[:-1]}, "traceEvents": [\n'
    separator = ""
    counters = _counters(process, begin, resident, held)
    for event in _events(record, process, name, begin, counters):
        yield separator + json.dumps(event, allow_nan=False)
        separator = ",\n"
    yield "\n]}\n"


def _events(
    record: Record | None,
    process: int,
    name: str,
    begin: float,
    counters: Iterable[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    yield _named("process_name", process, process, name)
    threads = record.threads if record else {}
    for thread, its_name in threads.items():
        yield _named("thread_name", process, thread, its_name)
    yield from counters
    for event in record.events if record else ():
        when = event.begin - begin
        if event.kind == LAYER:
            yield from _layer(event, process, when)
            continue
        yield {
            "ph": "X",
            "name": _NAMES[event.kind],
            "cat": "memory",
            **_place(process, event.thread, when),
            "dur": _us(event.seconds),
            "args": {"line": event.name, "nbytes": event.nbytes},
        }
        yield _counter("live bytes", process, when + event.seconds, event.live)
    for stall in record.stalls if record else ():
        yield {
            "ph": "X",
            "name": "stall",
            "cat": "pinned memory",
            **_place(process, stall.thread, stall.begin - begin),
            "dur": _us(stall.seconds),
            "args": {"mechanism": stall.mechanism},
        }


def _counters(
    process: int,
    begin: float,
    resident: Iterable[tuple[float, int]],
    held: Iterable[tuple[float, Mapping[str, int]]],
) -> Iterator[dict[str, Any]]:
    for when, nbytes in resident:
        yield _counter("resident bytes", process, when - begin, nbytes)
    for when, states in held:
        for state, nbytes in states.items():
            yield _counter(f"allocators: {state} bytes", process, when - begin, nbytes)


def _layer(event: Event, process: int, when: float) -> Iterator[dict[str, Any]]:
    common = {"name": event.name, "cat": "layer"}
    if not event.task:
        where = _place(process, event.thread, when)
        yield {"ph": "X", **common, **where, "dur": _us(event.seconds)}
        return
    # Tasks of one thread overlap, which its track cannot show: each has a track of its own.
    common["id"] = hex(event.task)
    yield {"ph": "b", **common, **_place(process, event.thread, when)}
    yield {"ph": "e", **common, **_place(process, event.thread, when + event.seconds)}


def _place(process: int, thread: int, when: float) -> dict[str, Any]:
    return {"ts": _us(when), "pid": process, "tid": thread}


def _counter(name: str, process: int, when: float, nbytes: int) -> dict[str, Any]:
    return {"ph": "C", "name": name, **_place(process, process, when), "args": {"bytes": nbytes}}


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
