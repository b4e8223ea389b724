"""Where a stretch of the program spent its time in the kernel, and what memory it took."""

import resource
import time
from dataclasses import dataclass

import psutil

import bigmem
from bigmem import osmem


@dataclass(frozen=True)
class Usage:
    """One measured stretch; seconds, except where the name says otherwise.

    Attributes
    ----------
    wall_s
        By the clock.
    map_s, release_s
        In the allocator, on the calling threads.
    fault_s
        The rest of the kernel's time for the program's own threads: page faults, above all.
    reclaim_s
        What the reclaim workers spent beside.
    minor_faults, major_faults
        Numbers of page faults.
    peak_rss_bytes
        Highest resident set of the process so far.
    """

    wall_s: float
    map_s: float
    fault_s: float
    release_s: float
    reclaim_s: float
    minor_faults: int
    major_faults: int
    peak_rss_bytes: int


def process_seconds() -> float:
    """How long this process has lived, its start and imports included."""
    return time.time() - psutil.Process().create_time()


class Meter:
    """Measures from its construction to `stop`, over some allocators."""

    def __init__(self, *allocators: bigmem.Allocator) -> None:
        self._allocators = list({id(one): one for one in allocators}.values())
        self._stats = self.stats()
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._start = time.perf_counter()

    def stats(self) -> bigmem.AllocatorStats:
        """What the allocators hold and have done, together."""
        return sum((one.stats() for one in self._allocators), bigmem.AllocatorStats())

    def stop(self) -> Usage:
        """The stretch since construction; may be called again for a longer one."""
        wall = time.perf_counter() - self._start
        usage = resource.getrusage(resource.RUSAGE_SELF)
        stats = self.stats()
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
            major_faults=usage.ru_majflt - self._usage.ru_majflt,
            peak_rss_bytes=osmem.peak_resident_bytes(),
        )
