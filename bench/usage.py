"""Where a stretch of a program spent its time in the kernel, and what memory it took."""

from __future__ import annotations

import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import bigmem


@dataclass(frozen=True)
class Usage:
    """One measured stretch. Seconds, except where the name says otherwise.

    ``map_s`` and ``release_s`` are clocked by the allocator on the calling threads. ``fault_s``
    is the rest of the kernel time (user code excluded) of the program's own threads: in these
    programs, page faults. ``reclaim_s`` is what the reclaim workers spent meanwhile.
    """

    wall_s: float
    map_s: float
    fault_s: float
    release_s: float
    reclaim_s: float
    minor_faults: int
    peak_rss_bytes: int


class Meter:
    """Measures from construction to `stop`, over one allocator."""

    def __init__(self, allocator: bigmem.Allocator) -> None:
        self._allocator = allocator
        self._stats = allocator.stats()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._start = time.perf_counter()

    def stop(self) -> Usage:
        wall = time.perf_counter() - self._start
        usage = resource.getrusage(resource.RUSAGE_SELF)
        stats = self._allocator.stats()
        mapped = stats.allocate_seconds - self._stats.allocate_seconds
        released = stats.release_seconds - self._stats.release_seconds
        reclaimed = stats.reclaim_seconds - self._stats.reclaim_seconds
        kernel = usage.ru_stime - self._usage.ru_stime
        return Usage(
            wall_s=wall,
            map_s=mapped,
            fault_s=max(0.0, kernel - mapped - released - reclaimed),
            release_s=released,
            reclaim_s=reclaimed,
            minor_faults=usage.ru_minflt - self._usage.ru_minflt,
            peak_rss_bytes=peak_rss(),
        )


def peak_rss() -> int:
    """Highest resident set of this process so far, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status names no VmHWM")


def as_json(usage: Usage) -> dict[str, float | int]:
    return asdict(usage)
