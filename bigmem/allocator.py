"""The contract that every allocator keeps, and what it reports."""

import operator
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self, SupportsIndex, TypeVar

from . import osmem
from ._core import Block, parked_by, poll_fences
from .errors import BigmemError, OutOfMemory
from .sizes import parse_size

MAX_ALIGNMENT = 1 << 30
Quick = Callable[[int, int, bool], Block | None]
"""Makes a block of (nbytes, alignment, zeroed) without any Python code; `None` if it cannot."""
# How long a flush waits before it asks a fence again.
FENCE_SECONDS = 0.001

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """What an allocator holds and has done: bytes unless the name says otherwise.

    Attributes
    ----------
    live
        In use; sizes rounded to 4 KiB.
    pending
        Released and waiting for the reclaimer, or for a fence.
    reclaiming
        In the reclaimer's hands.
    warm
        Resident and reusable without a fault; what live blocks leave of their last huge page, which
        serves smaller blocks and cannot go back before them, included.
    lazy
        Given up with MADV_FREE: still counted in RSS until the kernel needs it.
    clean
        Address range that is kept while its memory is with the operating system.
    peak_live, peak_resident
        The highest `live`, and the highest sum of all but `clean`, so far.
    allocations, releases
        How many.
    warm_hits
        Allocations served from warm memory.
    reclaimed
        Given back to the operating system so far.
    allocate_seconds, release_seconds
        Time that callers spent in allocations (mapping and clearing, not first touch) and releases,
        growing and shrinking a block included.
    reclaim_seconds
        Time that worker threads spent reclaiming.
    waits, wait_seconds
        Allocations, flushes and trims that had to reclaim or to wait, and how long they took.
    reclaim_failures
        Reclaims that the operating system refused; their memory stays warm.
    """

    live: int = 0
    pending: int = 0
    reclaiming: int = 0
    warm: int = 0
    lazy: int = 0
    clean: int = 0
    peak_live: int = 0
    peak_resident: int = 0
    allocations: int = 0
    releases: int = 0
    warm_hits: int = 0
    reclaimed: int = 0
    allocate_seconds: float = 0.0
    release_seconds: float = 0.0
    reclaim_seconds: float = 0.0
    waits: int = 0
    wait_seconds: float = 0.0
    reclaim_failures: int = 0

    @property
    def resident(self) -> int:
        """Bytes that may occupy memory: everything but `clean`."""
        return self.live + self.pending + self.reclaiming + self.warm + self.lazy

    def __add__(self, other: "AllocatorStats") -> "AllocatorStats":
        """Field by field; a sum of peaks bounds the peak of the sum from above."""
        return AllocatorStats(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )


class Allocator(ABC):
    """Gives blocks and takes them back; subclass it to write your own.

    A subclass must define `allocate`, which begins with `check_request`; the other methods fit an
    allocator that keeps nothing. `bigmem.testing` has the tests that it should pass. Nothing in
    `allocate` may take a Python-level lock that a destructor could need: releases happen inside
    the garbage collector, in any thread, and during shutdown.

    Parameters
    ----------
    name
        What error messages and reports call it; the class name by default.
    """

    def __init__(self, *, name: str | None = None) -> None:
        self.name = name if name is not None else type(self).__name__
        self._closed = False
        key = id(self)
        _open[key] = weakref.ref(self, lambda _: _open.pop(key, None))

    @abstractmethod
    def allocate(
        self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
    ) -> Block:
        """Return a block of exactly `nbytes` bytes.

        Parameters
        ----------
        nbytes
            Size in bytes, or a string such as ``"64MiB"``; 0 makes an empty block, which has an
            address of its own all the same.
        alignment
            Power of two up to 1 GiB that the address is a multiple of.
        zeroed
            Whether every byte must be zero. Memory the kernel just zeroed is not cleared again.

        Raises
        ------
        OutOfMemory
            No memory, no address range, or no room within the budget.
        BigmemError
            A senseless size or alignment, or the allocator is closed.
        """

    def check_request(self, nbytes: SupportsIndex | str, alignment: int) -> int:
        """Validate what `allocate` was asked for: the first thing for a subclass to do.

        Returns
        -------
        int
            The size in bytes.

        Raises
        ------
        OutOfMemory
            More than the machine has, or than any address space holds.
        BigmemError
            A senseless size or alignment, or the allocator is closed.
        """
        if self._closed:
            raise BigmemError(f"{self!r} takes no allocations")
        alignment = operator.index(alignment)
        if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise BigmemError(f"alignment must be a power of two up to 1 GiB, not {alignment}")
        size = nbytes if type(nbytes) is int and nbytes >= 0 else parse_size(nbytes)
        if size > sys.maxsize:
            raise OutOfMemory(f"{size} bytes are more than any address space holds")
        # Where the system overcommits without limit it would grant this, and kill us on touch.
        if size > (physical := osmem.physical_bytes()):
            raise OutOfMemory(
                f"{size} bytes are more than this machine's {physical}, swap included"
            )
        return size

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing that was released before the call is pending.

        Parameters
        ----------
        timeout
            Seconds to wait at most; `None` waits for ever.

        Returns
        -------
        bool
            `False` on timeout.
        """
        start = time.monotonic()
        while True:
            poll_fences(self)
            if not parked_by(self):
                return True
            if timeout is not None and time.monotonic() - start >= timeout:
                return False
            time.sleep(FENCE_SECONDS)

    def trim(self) -> int:
        """Give every warm byte back now, on this thread; return how many bytes went back."""
        return 0

    def stats(self) -> AllocatorStats:
        """What the allocator holds and has done."""
        return AllocatorStats()

    def close(self) -> None:
        """Refuse further allocations. Idempotent; live blocks stay valid until they die."""
        self._closed = True
        _open.pop(id(self), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{', closed' if self._closed else ''}>"

    def _quick(self) -> Quick | None:
        """What the NumPy hook tries before `allocate`, if anything may come before that."""
        return None


# A plain dict, because its operations are atomic: a lock here could be wanted by a destructor that
# runs while the same thread holds it.
_open: dict[int, "weakref.ref[Allocator]"] = {}


def open_allocators() -> list[Allocator]:
    """Every allocator of the process that is alive and not closed."""
    return [allocator for ref in list(_open.values()) if (allocator := ref()) is not None]


def ask_all(ask: Callable[[Allocator], _Answer], *, tell: bool) -> list[_Answer]:
    """Ask every open allocator, whatever one of others' raises; return what they answer.

    Parameters
    ----------
    tell
        Whether the first error is raised once all are asked.
    """
    answers: list[_Answer] = []
    failure = None
    for allocator in open_allocators():
        try:
            answers.append(ask(allocator))
        except Exception as error:
            if tell:
                failure = failure or error
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # or its traceback would keep this frame, and that the callers' arrays
    return answers
