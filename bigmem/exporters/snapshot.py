"""The stats of every allocator of the process as plain data, which JSON can hold."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
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
    `allocators` the part of each name.
    """

    process: int
    time: float
    monotonic: float
    resident: int
    total: Figures
    allocators: dict[str, Figures]


def snapshot() -> Snapshot:
    """What every open allocator holds and has done, now.

    Allocators of one name are added up, and wrappers left out: theirs are their upstream's. For
    JSON: ``json.dumps(snapshot())``.
    """
    return cast(Snapshot, {**held(), "resident": osmem.resident_bytes()})


def held() -> dict[str, Any]:
    """A snapshot but for what the process has in memory: nothing is opened for it."""
    named = by_name()
    return {
        "process": os.getpid(),
        "time": time.time(),
        "monotonic": time.monotonic(),
        "total": _figures(sum(named.values(), AllocatorStats())),
        "allocators": {name: _figures(stats) for name, stats in named.items()},
    }


def by_name() -> Mapping[str, AllocatorStats]:
    """The stats of the open allocators that stand on no other, by name."""
    found: dict[str, AllocatorStats] = {}
    for allocator in at_the_bottom():
        found[allocator.name] = found.get(allocator.name, AllocatorStats()) + allocator.stats()
    return found


def at_the_bottom() -> list[Allocator]:
    """The open allocators that stand on no other."""
    return [one for one in open_allocators() if not isinstance(one, Wrapper)]


def _figures(stats: AllocatorStats) -> Figures:
    return {
        key: _plain(value) for key, value in {**asdict(stats), "resident": stats.resident}.items()
    }


def _plain(value: Any) -> int | float:
    """As JSON has it: an allocator of others' may count in NumPy's numbers."""
    return int(value) if isinstance(value, Integral) else float(value)
