"""What memory costs on this machine: touching it, filling it again, giving it back.

Everything is measured in both page regimes, on memory of our own, in the processor time of the
calling thread: other programs on the machine then weigh less, and what is measured is work that
the thread does itself. Guest memory that was never touched costs several times as much at its
first fault. So each measurement begins with a round that does not count, and touches memory in
pieces of 2 MiB, of which the far slower ones are left out: the kernel may hand out untouched pages
later, too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from bigmem import osmem, pressure

MIB = 1 << 20
GIB = 1 << 30
HUGE_PAGE = 2 * MIB
SMALL_PAGE = os.sysconf("SC_PAGESIZE")

FULL_SIZE = 256 * MIB
"""Bytes that a round of `page_costs` touches where there is room."""

OUTLIER = 2.5
"""First touches that take this many times the usual come from memory never touched before."""

MOST_PAGES = 0.5
"""From this share on, memory counts as being in huge pages."""

# One part in so many of the memory left may be touched.
_SHARE = 10
_MOST_ROUNDS = 5
_WARM_UP_PIECE = 8 * MIB
# One part in so many of a measurement's time may go into warming up.
_WARM_UP_SHARE = 5
# Touching a piece of the size of a huge page takes this many faults if it is one.
_FEW_FAULTS = 2
# malloc maps and unmaps blocks of this size whatever it has learnt from earlier ones.
_SURELY_MAPPED = 64 * MIB

_LIBC = ctypes.CDLL(None, use_errno=True)


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


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of the costs of pages.

    Attributes
    ----------
    small, huge
        The two page regimes; `None` where there was no memory to measure with, and for `huge` also
        where fewer than half of the pages came huge.
    huge_share
        The part of memory that came in huge pages where they were asked for; `None` if unmeasured.
    numpy_huge_share
        The same of NumPy's own arrays, which ask by themselves.
    wanted_bytes
        What each round would have touched, had there been room and time.
    note
        Why something could not be measured, if so.
    """

    small: PageCosts | None
    huge: PageCosts | None
    huge_share: float | None
    numpy_huge_share: float | None
    wanted_bytes: int
    note: str | None = None


def page_costs(nbytes: int, *, huge: bool, seconds: float) -> PageCosts:
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
        middle = _median(values)
        return None if middle is None else middle * 1e3 * GIB / nbytes

    touches = [each.touch for each in rounds]
    fault_s = _median(touch.huge_fault_s if huge else touch.small_fault_s for touch in touches)
    return PageCosts(
        nbytes=nbytes,
        rounds=len(rounds),
        huge_share=median(touch.huge_bytes for touch in touches) / nbytes,
        fault_s=fault_s or 0.0,
        warm_up_ms=warm_up_s * 1e3 * GIB / nbytes,
        first_touch_ms=ms(touch.cold_s - touch.warm_s for touch in touches) or 0.0,
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
    """The first fill of fresh memory, and the next one.

    The fills in seconds for all of it, had each piece of it taken what is typical; the faults in
    seconds beyond the fill, `None` if there were none of the kind.
    """

    cold_s: float
    warm_s: float
    small_fault_s: float | None
    huge_fault_s: float | None
    huge_bytes: int


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
        pieces = self.array.reshape(-1, HUGE_PAGE)
        before = _huge_bytes()
        cold = [_fill(piece) for piece in pieces]
        huge_bytes = max(_huge_bytes() - before, 0)
        warm_s = _typical([_fill(piece)[0] for piece in pieces])
        small: list[float] = []
        huge: list[float] = []
        for seconds, faults in cold:
            if 0 < faults <= _FEW_FAULTS:
                huge.append(seconds - warm_s)
            else:  # some sandboxes count no faults; there each page is taken for one
                small.append((seconds - warm_s) / (faults or HUGE_PAGE // SMALL_PAGE))
        return _Touch(
            cold_s=_typical([seconds for seconds, _ in cold]) * len(cold),
            warm_s=warm_s * len(cold),
            small_fault_s=_typical(small) if small else None,
            huge_fault_s=_typical(huge) if huge else None,
            huge_bytes=min(huge_bytes, self.array.nbytes),
        )

    def unmap(self) -> None:
        del self.array  # a mapping with a view of it cannot be closed
        self._mapping.close()


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


def _fill(piece: npt.NDArray[np.uint8]) -> tuple[float, int]:
    """Seconds and faults that writing all of it takes."""
    faults = _minor_faults()
    seconds = _timed(lambda: piece.fill(1))
    return seconds, _minor_faults() - faults


def _typical(values: Sequence[float]) -> float:
    """The mean of all but those far above the median."""
    most = OUTLIER * median(values)
    return fmean([value for value in values if value <= most] or values)


def _median(values: Iterable[float | None]) -> float | None:
    """Of those that are there, and never below nothing, as a difference of times may be."""
    had = [value for value in values if value is not None]
    return max(median(had), 0.0) if had else None


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
