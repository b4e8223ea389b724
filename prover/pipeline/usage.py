"""Where a stretch of the program spent its time in the kernel, and what memory it took."""

import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

import bigmem
from bigmem import osmem

_RECLAIMER = "bigmem-reclaim"
_THREAD_CLOCK = 6  # of a thread, the time on a processor: what pthread_getcpuclockid makes


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
        By the clock, what reclaiming took beside, on the workers above all.
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


def reclaimers() -> set[int]:
    """The threads that reclaim, by the system's numbers."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that is ending
            if (task / "comm").read_text().strip() == _RECLAIMER:
                found.add(int(task.name))
    return found


def processor_seconds(threads: Iterable[int]) -> float:
    """Processor time so far of threads of this process; of those that have ended, none."""
    total = 0.0
    for thread in threads:
        with suppress(OSError):
            total += time.clock_gettime(~thread << 3 | _THREAD_CLOCK)
    return total


class Meter:
    """Measures from its construction to `stop`, over some allocators."""

    def __init__(self, *allocators: bigmem.Allocator) -> None:
        self._allocators = list({id(one): one for one in allocators}.values())
        self._stats = self.stats()
        self._reclaimers_s = processor_seconds(reclaimers())
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
        # Their time in the kernel, not by the clock, or their waiting would be taken from others.
        elsewhere = processor_seconds(reclaimers()) - self._reclaimers_s
        kernel = usage.ru_stime - self._usage.ru_stime
        return Usage(
            wall_s=wall,
            map_s=mapped,
            fault_s=max(0.0, kernel - mapped - released - max(0.0, elsewhere)),
            release_s=released,
            reclaim_s=stats.reclaim_seconds - self._stats.reclaim_seconds,
            minor_faults=usage.ru_minflt - self._usage.ru_minflt,
            major_faults=usage.ru_majflt - self._usage.ru_majflt,
            peak_rss_bytes=osmem.peak_resident_bytes(),
        )
