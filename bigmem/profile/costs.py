"""What memory costs on this machine: touching it, filling it again, giving it back.

Everything is measured in both page regimes, on mappings of our own, in the processor time of the
calling thread: other programs on the machine then weigh less, and what is measured is work that
the thread does itself. Guest memory that was never touched costs several times as much at its
first fault, so each measurement begins with a round that does not count.
"""

from __future__ import annotations

import mmap
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bigmem import osmem, pressure

MIB = 1 << 20
GIB = 1 << 30
HUGE_PAGE = 2 * MIB
SMALL_PAGE = os.sysconf("SC_PAGESIZE")

_FAULT_RANGE = 64 * MIB
_FAULT_ROUNDS = 3
# When this much is over, no further round begins; one always counts.
_FAULT_SECONDS = 0.4
# The part of the memory left that a measurement may touch.
_SHARE = 10


@dataclass(frozen=True, slots=True)
class FaultCosts:
    """Seconds that one page fault costs beyond the writing of the page.

    Attributes
    ----------
    small_s
        A fault that brings a page of `SMALL_PAGE` bytes, 4 KiB on most machines.
    huge_s
        A fault that brings 2 MiB; `None` where this process gets no huge pages.
    """

    small_s: float
    huge_s: float | None


def fault_costs(nbytes: int = _FAULT_RANGE) -> FaultCosts:
    """Measure the cost of a page fault, in both page regimes, in well under a second.

    Parameters
    ----------
    nbytes
        How much is touched in a round; less where less than ten times as much memory is left.

    Raises
    ------
    OSError
        No memory can be mapped.
    """
    size = affordable(nbytes)
    deadline = time.monotonic() + _FAULT_SECONDS
    small = [_small_fault(each) for each in _rounds(size, huge=False, deadline=deadline)]
    small_s = median(small)
    huge = [_huge_fault(each, small_s) for each in _rounds(size, huge=True, deadline=deadline)]
    had = [each for each in huge if each is not None]
    return FaultCosts(small_s, median(had) if had else None)


def affordable(nbytes: int) -> int:
    """As much of `nbytes` as is at most a tenth of what is left, in whole huge pages, at least one.

    What is left is bounded by the control groups, the machine, ``RLIMIT_AS`` and ``RLIMIT_DATA``.
    """
    left = [nbytes * _SHARE, *_left_by_limits()]
    headroom = pressure.headroom()
    if headroom is not None:
        left.append(headroom)
    return max(min(left) // _SHARE // HUGE_PAGE, 1) * HUGE_PAGE


def _left_by_limits() -> list[int]:
    pages = [int(field) for field in Path("/proc/self/statm").read_text().split()]
    limits = [
        (resource.getrlimit(resource.RLIMIT_AS)[0], pages[0]),
        (resource.getrlimit(resource.RLIMIT_DATA)[0], pages[5]),
    ]
    return [
        max(limit - used * SMALL_PAGE, 0)
        for limit, used in limits
        if limit != resource.RLIM_INFINITY
    ]


@dataclass(frozen=True, slots=True)
class _Touch:
    """The first fill of fresh memory, and the next one."""

    cold_s: float
    warm_s: float
    faults: int
    huge_pages: int


class _Range:
    """Fresh anonymous memory on a huge page's border, in one of the page regimes."""

    def __init__(self, nbytes: int, *, huge: bool) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._mapping = mmap.mmap(-1, nbytes + HUGE_PAGE, flags)
        with suppress(OSError):  # a kernel without huge pages has no such advice
            self._mapping.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        whole = np.frombuffer(self._mapping, np.uint8)
        self._begin = -whole.ctypes.data % HUGE_PAGE
        self._array = whole[self._begin : self._begin + nbytes]

    def fill(self) -> None:
        self._array.fill(1)

    def advise(self, advice: int) -> None:
        self._mapping.madvise(advice, self._begin, self._array.nbytes)

    def touch(self) -> _Touch:
        huge, faults = _huge_bytes(), _minor_faults()
        cold_s = _timed(self.fill)
        faults = _minor_faults() - faults
        huge = _huge_bytes() - huge
        # Some sandboxes count no faults; there each page is taken for one.
        faults = faults or self._array.nbytes // SMALL_PAGE
        return _Touch(cold_s, _timed(self.fill), faults, max(huge, 0) // HUGE_PAGE)

    def unmap(self) -> None:
        del self._array  # a mapping with a view of it cannot be closed
        self._mapping.close()


def _rounds(nbytes: int, *, huge: bool, deadline: float) -> list[_Touch]:
    touches = []
    for number in range(1 + _FAULT_ROUNDS):
        if number > 1 and time.monotonic() > deadline:
            break
        memory = _Range(nbytes, huge=huge)
        touches.append(memory.touch())
        memory.unmap()
    return touches[1:]


def _small_fault(touch: _Touch) -> float:
    return max(touch.cold_s - touch.warm_s, 0.0) / touch.faults


def _huge_fault(touch: _Touch, small_s: float) -> float | None:
    """What remains for a huge page once the small ones among the faults are paid."""
    if not touch.huge_pages:
        return None
    small_faults = max(touch.faults - touch.huge_pages, 0)
    paid = touch.warm_s + small_faults * small_s
    return max(touch.cold_s - paid, 0.0) / touch.huge_pages


def _timed(action: Callable[[], object]) -> float:
    start = time.thread_time()
    action()
    return time.thread_time() - start


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def _huge_bytes() -> int:
    try:
        return osmem.huge_page_bytes()
    except OSError:
        return 0  # no such account: none can be told of
