"""A byte limit that allocators share, and what an allocation does when it is reached."""

import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, SupportsIndex, TypeVar

from . import _core, pressure
from .errors import BigmemError, OutOfMemory
from .sizes import format_size, parse_size

if TYPE_CHECKING:
    from .native import NativeAllocator

_RECHECK_SECONDS = 0.001
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")

_Callback = TypeVar("_Callback", bound=Callable[[int], object])


class Budget:
    """An upper limit on the memory of one or more allocators, `clean` ranges excepted.

    Parameters
    ----------
    limit
        Bytes, a string such as ``"64GiB"``, or a share such as ``"80%"`` of the memory that this
        process may use: the smallest limit of its control groups and the machine.
    timeout
        Seconds that an allocation waits for fences and for reclaims under way before it fails;
        infinity waits for ever. It does not wait for other threads to release their blocks.

    Notes
    -----
    A share is read again when an allocation does not fit, and once a second while there are
    allocations. When it falls below what is in use, nothing happens to live blocks; the next
    allocation gives idle memory back until it fits.
    """

    def __init__(self, limit: SupportsIndex | str, *, timeout: float = 10.0) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
            raise BigmemError(f"timeout is a number of seconds, not {timeout!r}")
        self.timeout = timeout
        percent = _parse_share(limit) if isinstance(limit, str) and "%" in limit else 0.0
        self._fixed = None if percent else parse_size(limit)
        if self._fixed == 0:
            raise BigmemError("a budget of nothing admits no allocation")
        if percent:
            pressure._watch()
        self._core = _core.Budget(min(self._fixed or 0, sys.maxsize), percent)
        self._members: dict[int, weakref.ref[NativeAllocator]] = {}
        self._callbacks: list[Callable[[int], object]] = []
        self._asking: set[int] = set()  # threads that are calling callbacks

    @property
    def limit(self) -> int:
        """Bytes at most, at this moment."""
        return self._core.refresh() if self._fixed is None else self._fixed

    @property
    def used(self) -> int:
        """Bytes that count against the limit now."""
        return self._core.used()

    def on_pressure(self, callback: _Callback) -> _Callback:
        """Have `callback` called when memory is short; also a decorator.

        It is called on the allocating thread, with the bytes that are missing, when an allocation
        does not fit although all idle memory of the budget has been given back, before that
        allocation waits or fails; if blocks of this budget die in the call, the allocation
        tries again. It is also called at the first allocation after memory ran short around the
        process (see `bigmem.pressure`), with the size of that allocation.

        Parameters
        ----------
        callback
            Takes the number of bytes. Its exceptions go to `sys.unraisablehook`. Allocations inside
            it do not call it again; those of other threads may, at the same time.

        Returns
        -------
        callable
            The callback.
        """
        self._callbacks.append(callback)
        self._core.listen()
        return callback

    def __repr__(self) -> str:
        return f"<Budget {format_size(self.used)} of {format_size(self.limit)}>"

    def _set_limit(self, nbytes: int) -> None:
        """Another limit, of a byte at least; not for a share, which follows the system's."""
        assert self._fixed is not None
        self._fixed = max(1, nbytes)
        self._core.set_limit(min(self._fixed, sys.maxsize))

    def _admit(self, allocator: "NativeAllocator") -> None:
        key = id(allocator)
        self._members[key] = weakref.ref(allocator, lambda _: self._members.pop(key, None))

    def _holders(self) -> "list[NativeAllocator]":
        return [found for ref in list(self._members.values()) if (found := ref()) is not None]

    def _make_room(self, nbytes: int, deadline: float, ask: bool) -> bool:
        """Reclaim on this thread, or wait a moment for others; raise when nothing will come.

        `nbytes` is what the block counts as. After it returns, the caller tries again: others may
        have taken the room meanwhile. `ask` says whether callbacks may help; the answer, whether
        they still may.
        """
        if self._core.hear():
            self._call_back(nbytes)
        _core.poll_fences()
        holders = self._holders()
        limit = self.limit
        if nbytes > limit:
            raise self._refusal(nbytes, holders)
        releases = sum(holder.stats().releases for holder in holders)
        missing = self.used + nbytes - limit
        reclaimed = False
        for holder in holders:
            if missing <= 0:
                return ask
            done = holder._core.reclaim(missing)
            missing -= done
            reclaimed = reclaimed or done > 0
        missing = self.used + nbytes - self.limit
        if reclaimed or missing <= 0:
            return ask
        if ask and self._callbacks:
            return self._call_back(missing)
        stats = [holder.stats() for holder in holders]
        # More charged than held: something is on its way to the system.
        coming = any(s.pending or s.reclaiming for s in stats)
        coming = coming or self.used > sum(s.resident for s in stats)
        # Others have let go meanwhile, perhaps into warm memory that is there to be taken.
        if sum(s.releases for s in stats) != releases and time.monotonic() < deadline:
            return ask
        if coming and time.monotonic() < deadline:
            time.sleep(_RECHECK_SECONDS)
            return False
        raise self._refusal(nbytes, holders)

    def _refusal(self, nbytes: int, holders: "list[NativeAllocator]") -> OutOfMemory:
        return OutOfMemory(
            f"no room for {format_size(nbytes)} in a budget of {format_size(self.limit)}; "
            + describe_holders(holders)
        )

    def _call_back(self, nbytes: int) -> bool:
        """Call every callback; whether blocks of this budget have died in them."""
        thread = threading.get_ident()
        if thread in self._asking or not self._callbacks:
            return False
        live = self._live()
        self._asking.add(thread)
        try:
            for callback in list(self._callbacks):
                _core.call_reporting(callback, nbytes)
        finally:
            self._asking.discard(thread)
        return self._live() < live

    def _live(self) -> int:
        return sum(holder.stats().live for holder in self._holders())


def _parse_share(text: str) -> float:
    """Percent, from a string such as ``"80%"``."""
    match = _SHARE.fullmatch(text)
    percent = float(match[1]) if match else 0.0
    if not 0 < percent <= 100:
        raise BigmemError(f"{text!r} is no share of the memory; write, for example, '80%'")
    return percent


def describe_holders(holders: "list[NativeAllocator]") -> str:
    """Who holds how much in which states, the largest first."""
    held = sorted(((h.stats(), h) for h in holders), key=lambda item: -item[0].resident)
    parts = [
        f"{holder.name} holds {format_size(stats.live)} live"
        + "".join(
            f", {format_size(amount)} {state}" + (holder._awaited() if state == "pending" else "")
            for state in ("pending", "reclaiming", "warm", "lazy")
            if (amount := getattr(stats, state))
        )
        for stats, holder in held[:5]
        if stats.resident
    ]
    return "; ".join(parts) if parts else "no allocator holds any"
