"""What the allocators over the core's arenas share."""

import atexit
import sys
import time
from functools import partial
from typing import SupportsIndex

from . import _core, incidents, pressure
from ._core import Block
from .allocator import FENCE_SECONDS, Allocator, AllocatorStats, Quick, ask_all, open_allocators
from .arena.pages import AnonymousPages
from .budget import Budget, describe_holders
from .errors import BigmemError, OutOfMemory
from .reclaim import ReclaimPool
from .release import Deferred, Inline, Recycle, ReleasePolicy
from .sizes import format_size

_POLICIES = {Inline: 0, Deferred: 1, Recycle: 2}
_ADVICE = {"dontneed": 0, "free": 1}
_HUGE = {"never": 0, "auto": 1, "always": 2}

# Unless the policy says otherwise, one part in so many of the process's memory may be pending.
_PENDING_PART = 4
# How long flush stays in the core before it looks for signals.
_SLICE_SECONDS = 0.05


_core.report_incidents_to(incidents.report)
atexit.register(_core.end_workers)


def _native_size(size: SupportsIndex | str | None) -> int:
    """A size that has been parsed, as the core takes it; `None` is no limit."""
    return min(size, sys.maxsize) if isinstance(size, int) else sys.maxsize


class NativeAllocator(Allocator):
    """Base of `ArenaAllocator` and `MappedAllocator`; they differ in how the core maps memory."""

    def __init__(
        self,
        *,
        pages: AnonymousPages,
        release: ReleasePolicy,
        reserve: int,
        mapping_per_block: bool,
        budget: Budget | None,
        reclaim: ReclaimPool | None,
        name: str | None,
        wipe: bool = False,
        table: _core.ProbedPages | _core.CudaPages | None = None,
        fences: _core.Fences | None = None,
    ) -> None:
        if type(release) not in _POLICIES:
            raise BigmemError(f"release is Inline(), Deferred() or Recycle(), not {release!r}")
        if not isinstance(pages, AnonymousPages):
            raise BigmemError(f"pages is AnonymousPages(), not {pages!r}")
        if budget is not None and not isinstance(budget, Budget):
            raise BigmemError(f"budget is a Budget, not {budget!r}")
        if reclaim is not None and not isinstance(reclaim, ReclaimPool):
            raise BigmemError(f"reclaim is a ReclaimPool, not {reclaim!r}")
        self.pages = pages
        self.release = release
        self.budget = budget
        self._waits_for = "fences" if fences is None else "the GPU"
        self.wipe = wipe
        self.reclaim = reclaim if reclaim is not None else ReclaimPool.default()
        memory = pressure._watch().limit()
        recycle = release if isinstance(release, Recycle) else Recycle()
        max_pending = release.max_pending if isinstance(release, Deferred) else None
        if max_pending is None:
            max_pending = None if memory is None else memory // _PENDING_PART
        self._core = _core.Arena(
            policy=_POLICIES[type(release)],
            advice=_ADVICE[release.advice],
            decay=float(recycle.decay),
            max_warm=_native_size(recycle.max_warm),
            max_pending=_native_size(max_pending),
            huge=_HUGE[pages._resolve()],
            wipe=wipe,
            per_block=mapping_per_block,
            reserve=_native_size(reserve),
            pages=pages._native(secret=wipe) if table is None else table,
            pool=self.reclaim._core,
            budget=None if budget is None else budget._core,
            fences=fences,
        )
        # Last: from now on others may ask for its stats or trim it.
        super().__init__(name=name)
        if budget is not None:
            budget._admit(self)

    def allocate(
        self,
        nbytes: SupportsIndex | str,
        *,
        alignment: int = 64,
        zeroed: bool = False,
        prefault: bool | None = None,
    ) -> Block:
        """As `Allocator.allocate`.

        Parameters
        ----------
        nbytes, alignment, zeroed
            As in `Allocator.allocate`.
        prefault
            Whether the block's memory is to be there before it is handed out, at the price of the
            faults that its first touch would take; `None` leaves it to `pages`.
        """
        size = self.check_request(nbytes, alignment)
        populate = self.pages.prefault if prefault is None else prefault
        try:
            block = self._core.allocate(self, populate, size, alignment, zeroed)
        except OutOfMemory as error:
            block = self._after_trimming(size, alignment, zeroed, populate, str(error))
        if block is None:
            return self._within_budget(size, alignment, zeroed, populate)
        return block

    def flush(self, timeout: float | None = None) -> bool:
        start = time.monotonic()
        ticket = self._core.ticket()
        try:
            while True:
                _core.poll_fences(self)
                left = _SLICE_SECONDS
                if timeout is not None:
                    left = min(left, max(0.0, start + timeout - time.monotonic()))
                if self._core.fenced():
                    left = min(left, FENCE_SECONDS)
                if self._core.drain(ticket, left):
                    return True
                if timeout is not None and time.monotonic() - start >= timeout:
                    return False
        finally:
            self._core.count_wait(time.monotonic() - start)

    def trim(self) -> int:
        start = time.monotonic()
        _core.poll_fences()
        nbytes = self._core.trim()
        self._core.count_wait(time.monotonic() - start)
        return nbytes

    def stats(self) -> AllocatorStats:
        return AllocatorStats(**self._core.counters())

    def close(self) -> None:
        super().close()
        self._core.retire()

    def _awaited(self) -> str:
        """For error messages: how much of what is pending waits for fences."""
        nbytes = self._core.fenced()
        return f" ({format_size(nbytes)} of it waiting for {self._waits_for})" if nbytes else ""

    def _quick(self) -> Quick | None:
        if type(self).allocate is not NativeAllocator.allocate:
            return None
        return partial(self._core.allocate, self, self.pages.prefault)

    def _after_trimming(
        self, size: int, alignment: int, zeroed: bool, populate: bool, refusal: str
    ) -> Block | None:
        """Try again with everyone's idle memory given back, or say who holds what."""
        # Of what else goes wrong the caller could make nothing.
        if sum(ask_all(lambda allocator: allocator.trim(), tell=False)):
            try:
                return self._core.allocate(self, populate, size, alignment, zeroed)
            except OutOfMemory as error:
                refusal = str(error)  # an exception kept here would keep the callers' frames
        holders = [a for a in open_allocators() if isinstance(a, NativeAllocator)]
        raise OutOfMemory(f"{refusal}; {describe_holders(holders)}") from None

    def _within_budget(self, size: int, alignment: int, zeroed: bool, populate: bool) -> Block:
        assert self.budget is not None
        start = time.monotonic()
        counted = self._core.needed(size)
        block = None
        ask = True
        try:
            while block is None:
                ask = self.budget._make_room(counted, start + self.budget.timeout, ask)
                block = self._core.allocate(self, populate, size, alignment, zeroed)
        finally:
            self._core.count_wait(time.monotonic() - start)
        return block
