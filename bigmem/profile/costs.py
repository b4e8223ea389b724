"""What memory costs on this machine: touching it, filling it again, giving it back.

Everything is measured in both page regimes, on memory of our own, in the processor time of the
calling thread: other programs on the machine then weigh less, and what is measured is work that
the thread does itself. Guest memory that was never touched costs several times as much at its
first fault, so each measurement begins with a round that does not count.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import time
from collections.abc import Callable, Iterable
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

FULL_SIZE = 256 * MIB
"""Bytes that a round of `page_costs` touches where there is room."""

_FAULT_RANGE = 64 * MIB
_FAULT_ROUNDS = 3
# When this much is over, no further round begins; one always counts.
_FAULT_SECONDS = 0.4
# One part in so many of the memory left may be touched.
_SHARE = 10
_MOST_ROUNDS = 5
_WARM_UP_PIECE = 8 * MIB
# One part in so many of a measurement's time may go into warming up.
_WARM_UP_SHARE = 5
# malloc maps and unmaps blocks of this size whatever it has learnt from earlier ones.
_SURELY_MAPPED = 64 * MIB

_LIBC = ctypes.CDLL(None, use_errno=True)


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


@dataclass(frozen=True, slots=True)
class PageCosts:
    """What memory costs in one page regime: medians, in ms per GiB unless named.

    Attributes
    ----------
    nbytes, rounds
        Bytes touched in a round, and how many rounds counted.
    huge_share
        The part of the touched memory that came in huge pages, 0 to 1.
    fault_s
        Seconds that one fault of this regime's page costs beyond the writing of the page.
    warm_up_ms
        The very first fill, which does not count: far above the others where the memory had never
        been touched since the machine started.
    first_touch_ms
        The first fill of fresh memory beyond that of warm memory: faults and zeroing.
    warm_fill_ms
        A fill of memory that is there.
    dontneed_ms, free_ms
        ``MADV_DONTNEED`` and ``MADV_FREE`` of touched memory; `None` where the kernel refuses.
    refill_ms
        A fill after ``MADV_FREE``, nobody having wanted the memory meanwhile.
    numpy_free_ms
        What freeing an array of NumPy's takes; `None` where there is too little memory to tell.
    munmap_ms
        Unmapping touched memory.
    """

    nbytes: int
    rounds: int
    huge_share: float
    fault_s: float
    warm_up_ms: float
    first_touch_ms: float
    warm_fill_ms: float
    dontneed_ms: float | None
    free_ms: float | None
    refill_ms: float | None
    numpy_free_ms: float | None
    munmap_ms: float


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
    small_s = median(_small_fault(touch) for touch in _touches(size, False, deadline))
    had = [_huge_fault(touch, small_s) for touch in _touches(size, True, deadline)]
    huge = [cost for cost in had if cost is not None]
    return FaultCosts(small_s, median(huge) if huge else None)


def page_costs(nbytes: int, *, huge: bool, seconds: float, small_fault_s: float = 0.0) -> PageCosts:
    """Measure everything in one page regime.

    Parameters
    ----------
    nbytes
        What to touch in a round, in whole huge pages. Less, where warming up that much would take
        too much of the time.
    huge
        Whether to ask for huge pages; `PageCosts.huge_share` tells whether they came.
    seconds
        No further round begins that would end later than this; one always counts.
    small_fault_s
        The cost of a small page's fault, for those that come between huge ones.

    Raises
    ------
    OSError, MemoryError
        No memory can be mapped.
    """
    start = time.monotonic()
    warm_up_s, nbytes = _warm_up(nbytes, huge, start + seconds / _WARM_UP_SHARE)
    rounds: list[_Round] = []
    while len(rounds) < _MOST_ROUNDS:
        begin = time.monotonic()
        rounds.append(_round(nbytes, huge))
        end = time.monotonic()
        if end + (end - begin) > start + seconds:
            break

    def ms(values: Iterable[float | None]) -> float | None:
        had = [value for value in values if value is not None]
        return median(had) * 1e3 * GIB / nbytes if had else None

    touches = [each.touch for each in rounds]
    fault_s = median(_small_fault(touch) for touch in touches)
    if huge:
        faults = [_huge_fault(touch, small_fault_s) for touch in touches]
        fault_s = median([cost for cost in faults if cost is not None] or [fault_s])
    return PageCosts(
        nbytes=nbytes,
        rounds=len(rounds),
        huge_share=median(touch.huge_pages for touch in touches) * HUGE_PAGE / nbytes,
        fault_s=fault_s,
        warm_up_ms=warm_up_s * 1e3 * GIB / nbytes,
        first_touch_ms=ms(max(touch.cold_s - touch.warm_s, 0.0) for touch in touches) or 0.0,
        warm_fill_ms=ms(touch.warm_s for touch in touches) or 0.0,
        dontneed_ms=ms(each.dontneed_s for each in rounds),
        free_ms=ms(each.free_s for each in rounds),
        refill_ms=ms(each.refill_s for each in rounds),
        numpy_free_ms=ms(each.numpy_free_s for each in rounds),
        munmap_ms=ms(each.munmap_s for each in rounds) or 0.0,
    )


def numpy_huge_share(nbytes: int) -> float:
    """The part of an array that NumPy makes by itself that comes in huge pages, 0 to 1.

    Raises
    ------
    MemoryError
        The array cannot be made.
    """
    before = _huge_bytes()
    array = np.empty(nbytes, np.uint8)
    array.fill(1)
    return min(max(_huge_bytes() - before, 0) / nbytes, 1.0)


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
    try:
        pages = [int(field) for field in Path("/proc/self/statm").read_text().split()]
    except OSError:
        return []  # no /proc here: a limit that is too near shows when memory is mapped
    limits = [(resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])]
    return [
        max(resource.getrlimit(limit)[0] - used * SMALL_PAGE, 0)
        for limit, used in limits
        if resource.getrlimit(limit)[0] != resource.RLIM_INFINITY
    ]


@dataclass(frozen=True, slots=True)
class _Touch:
    """The first fill of fresh memory, and the next one."""

    cold_s: float
    warm_s: float
    faults: int
    huge_pages: int


@dataclass(frozen=True, slots=True)
class _Round:
    """A life of memory: touched, given back in every way, touched again in between."""

    touch: _Touch
    dontneed_s: float | None
    free_s: float | None
    refill_s: float | None
    munmap_s: float
    numpy_free_s: float | None


class _Range:
    """Fresh anonymous memory on a huge page's border, in one of the page regimes."""

    def __init__(self, nbytes: int, *, huge: bool) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._mapping = mmap.mmap(-1, nbytes + HUGE_PAGE, flags)
        with suppress(OSError):  # a kernel without huge pages has no such advice
            self._mapping.madvise(_regime_advice(huge))
        whole = np.frombuffer(self._mapping, np.uint8)
        self._begin = -whole.ctypes.data % HUGE_PAGE
        self.array = whole[self._begin : self._begin + nbytes]

    def fill(self) -> None:
        self.array.fill(1)

    def advise(self, advice: int) -> float | None:
        """Seconds that the advice took; `None` if it was refused."""
        start = time.thread_time()
        try:
            self._mapping.madvise(advice, self._begin, self.array.nbytes)
        except OSError:
            return None
        return time.thread_time() - start

    def touch(self) -> _Touch:
        huge, faults = _huge_bytes(), _minor_faults()
        cold_s = _timed(self.fill)
        faults = _minor_faults() - faults
        huge = _huge_bytes() - huge
        # Some sandboxes count no faults; there each page is taken for one.
        faults = faults or self.array.nbytes // SMALL_PAGE
        return _Touch(cold_s, _timed(self.fill), faults, max(huge, 0) // HUGE_PAGE)

    def unmap(self) -> None:
        del self.array  # a mapping with a view of it cannot be closed
        self._mapping.close()


def _touches(nbytes: int, huge: bool, deadline: float) -> list[_Touch]:
    touches: list[_Touch] = []
    while len(touches) < 1 + _FAULT_ROUNDS:
        memory = _Range(nbytes, huge=huge)
        touches.append(memory.touch())
        memory.unmap()
        if len(touches) > 1 and time.monotonic() > deadline:
            break
    return touches[1:]


def _warm_up(nbytes: int, huge: bool, deadline: float) -> tuple[float, int]:
    """Touch memory until the deadline; seconds that it took, and how much it was."""
    memory = _Range(nbytes, huge=huge)
    start, done = time.thread_time(), 0
    while done < nbytes and (done == 0 or time.monotonic() < deadline):
        memory.array[done : done + _WARM_UP_PIECE].fill(1)
        done = min(done + _WARM_UP_PIECE, nbytes)
    took = time.thread_time() - start
    memory.unmap()
    return took, done


def _round(nbytes: int, huge: bool) -> _Round:
    memory = _Range(nbytes, huge=huge)
    touch = memory.touch()
    dontneed_s = memory.advise(mmap.MADV_DONTNEED)
    memory.fill()
    free_s = memory.advise(mmap.MADV_FREE)
    refill_s = _timed(memory.fill)
    return _Round(
        touch=touch,
        dontneed_s=dontneed_s,
        free_s=free_s,
        refill_s=None if free_s is None else refill_s,
        munmap_s=_timed(memory.unmap),
        numpy_free_s=_numpy_free(nbytes, huge) if nbytes >= _SURELY_MAPPED else None,
    )


def _numpy_free(nbytes: int, huge: bool) -> float:
    """Seconds that dropping a touched array of NumPy's takes, put into the page regime first."""
    held = [np.empty(nbytes, np.uint8)]
    begin = held[0].ctypes.data
    offset = -begin % HUGE_PAGE
    whole = (nbytes - offset) // HUGE_PAGE * HUGE_PAGE
    _LIBC.madvise(
        ctypes.c_void_p(begin + offset), ctypes.c_size_t(whole), ctypes.c_int(_regime_advice(huge))
    )
    held[0].fill(1)
    return _timed(held.clear)


def _regime_advice(huge: bool) -> int:
    return mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE


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
