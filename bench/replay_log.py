"""What a program asked of its allocator, from a log of `bigmem.Traced`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bigmem import BigmemError
from bigmem.wrappers import traced

FORMAT = 2
"""The latest version of the format that this can read."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An allocation, or the release of its block.

    Attributes
    ----------
    at
        Seconds from the first operation of the log to the beginning of this one.
    thread
        Number of the thread, from 0; the program's main thread is the first.
    block
        Number of the block, from 0.
    is_release
        Whether the block ends here.
    nbytes, touched
        Of the block: its size, and how much of it the program touched. Where nobody looked, as in
        a block that was never released, that is all of it.
    zeroed
        Whether it was to be all zero.
    """

    at: float
    thread: int
    block: int
    is_release: bool
    nbytes: int
    touched: int
    zeroed: bool


@dataclass(frozen=True)
class Log:
    """The operations in the order in which they began."""

    operations: tuple[Operation, ...]
    threads: int

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What is the same whoever serves it; bytes, and seconds."""
        live = peak = touched = peak_touched = 0
        for one in self.operations:
            sign = -1 if one.is_release else 1
            live, touched = live + sign * one.nbytes, touched + sign * one.touched
            peak, peak_touched = max(peak, live), max(peak_touched, touched)
        made = [one for one in self.operations if not one.is_release]
        return {
            "allocations": len(made),
            "releases": len(self.operations) - len(made),
            "threads": self.threads,
            "bytes": sum(one.nbytes for one in made),
            "touched": sum(one.touched for one in made),
            "smallest": min(one.nbytes for one in made),
            "peak": peak,
            "peak_touched": peak_touched,
            "touched_at_end": touched,
            "seconds": self.operations[-1].at,
        }


def load(path: Path) -> Log:
    """Read a log, plain or compressed.

    Raises
    ------
    BigmemError
        It cannot be read, is no log, or events are missing in it.
    """
    try:
        events = traced.read(path)
    except OSError as error:
        raise BigmemError(f"{path} cannot be read: {(error.strerror or '').lower()}") from None
    try:
        return _log(events, path)
    except KeyError as error:
        raise BigmemError(f"{path} is damaged: an event lacks {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise BigmemError(f"{path} is damaged: an event is of the wrong kind: {error}") from None


def _log(events: list[traced.Event], path: Path) -> Log:
    for event in events:
        arguments = event.get("args", {})
        if event["name"] == "process_name" and arguments.get("version", 1) > FORMAT:
            raise BigmemError(f"{path} is of a newer format than {FORMAT}: take a newer bench")
        if event["name"] == "close" and arguments["dropped"]:
            raise BigmemError(f"{path} lacks {arguments['dropped']} events, for which it was full")
    # A program's layers are in the log, too, and may have any name.
    named = [
        event
        for event in events
        if event["name"] in ("allocate", "release") and event.get("cat") != "layer"
    ]
    for event in named:
        _check_time(event["ts"])
        _check_time(event["dur"])
    # A range may have been reused as soon as its release had begun, and by an allocation that had
    # begun before that.
    named.sort(key=lambda one: one["ts"] + (one["dur"] if one["name"] == "allocate" else 0))
    main = next((event["pid"] for event in named), 0)
    threads = {main: 0}
    blocks: dict[str, int] = {}
    releases = {}
    made: list[traced.Event] = []
    for event in named:
        threads.setdefault(event["tid"], len(threads))
        address = event["args"]["address"]
        if event["name"] == "allocate":
            if address in blocks:
                raise BigmemError(f"{path} lacks the release of the block at {address}")
            blocks[address] = len(made)
            made.append(event)
        elif (block := blocks.pop(address, None)) is not None:
            releases[block] = event
        else:
            raise BigmemError(f"{path} lacks the allocation of the block at {address}")
    if not made:
        raise BigmemError(f"{path} has no allocation in it")
    first = min(event["ts"] for event in made)
    operations = []
    for block, event in enumerate(made):
        nbytes, release = _size(event["args"]["nbytes"]), releases.get(block)
        touched = _size(release["args"].get("touched", nbytes)) if release else nbytes
        for one in filter(None, (event, release)):
            operations.append(
                Operation(
                    at=(one["ts"] - first) / 1e6,
                    thread=threads[one["tid"]],
                    block=block,
                    is_release=one is release,
                    nbytes=nbytes,
                    touched=min(touched, nbytes),
                    zeroed=event["args"].get("zeroed", False),
                )
            )
    operations.sort(key=lambda one: one.at)
    return Log(tuple(operations), len(threads))


def _check_time(value: object) -> None:
    # A block that ends before it begins would keep its replay waiting for ever.
    if not isinstance(value, int | float) or not 0 <= value <= sys.maxsize:
        raise ValueError(f"{value!r} is no time")


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of bytes")
    return value
