"""The stats of every allocator of the process as plain data, which JSON can hold."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict
from functools import reduce
from numbers import Integral
from typing import Any, TypedDict, cast

from bigmem import osmem
from bigmem.allocator import Allocator, AllocatorStats, open_allocators
from bigmem.wrappers.base import Wrapper

Figures = dict[str, Any]
"""The fields of `AllocatorStats`, and ``resident``."""


class Snapshot(TypedDict):
    """One moment of a process.

    `process` is its number, `time` seconds since 1970, `monotonic` those of `time.monotonic`,
    `resident` the bytes of the whole process that are in memory; `total` is `bigmem.stats`, and
    `allocators` the part of each name. Allocators that fail to tell are in neither: `errors` has
    what they raised, by name.
    """

    process: int
    time: float
    monotonic: float
    resident: int
    total: Figures
    allocators: dict[str, Figures]
    errors: dict[str, str]


def snapshot() -> Snapshot:
    """What every open allocator holds and has done, now.

    Allocators of one name are added up, and wrappers left out: theirs are their upstream's. For
    JSON: ``json.dumps(snapshot())``.
    """
    return cast(Snapshot, {**held(), "resident": osmem.resident_bytes()})


def held() -> dict[str, Any]:
    """A snapshot but for what the process has in memory: nothing is opened for it."""
    named, errors = by_name()
    return {
        "process": os.getpid(),
        "time": time.time(),
        "monotonic": time.monotonic(),
        "total": reduce(_sum, named.values(), _figures(AllocatorStats())),
        "allocators": named,
        "errors": errors,
    }


def by_name() -> tuple[dict[str, Figures], dict[str, str]]:
    """The figures of the open allocators that stand on no other, and what those that fail raise."""
    found: dict[str, Figures] = {}
    errors: dict[str, str] = {}
    for allocator in at_the_bottom():
        name = allocator.name
        try:
            figures = _figures(allocator.stats())
        except Exception as error:  # of others' allocators: the rest must be told all the same
            errors[name] = f"{type(error).__name__}: {error}"
            continue
        found[name] = _sum(found[name], figures) if name in found else figures
    return found, errors


def at_the_bottom() -> list[Allocator]:
    """The open allocators that stand on no other."""
    return [one for one in open_allocators() if not isinstance(one, Wrapper)]


def _figures(stats: AllocatorStats) -> Figures:
    return {
        key: _plain(value) for key, value in {**asdict(stats), "resident": stats.resident}.items()
    }


def _sum(one: Figures, other: Figures) -> Figures:
    return {key: one[key] + other[key] for key in one}


def _plain(value: Any) -> int | float:
    """As JSON has it: an allocator of others' may count in NumPy's numbers."""
    number = int(value) if isinstance(value, Integral) else float(value)
    if not math.isfinite(number):
        raise ValueError(f"a figure is {number}")
    return number
