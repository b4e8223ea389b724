"""A byte limit that allocators share, and what an allocation does when it is reached."""

import sys
import time
import weakref
from typing import TYPE_CHECKING, SupportsIndex

from . import _core
from .errors import BigmemError, OutOfMemory
from .sizes import format_size, parse_size

if TYPE_CHECKING:
    from .native import NativeAllocator

_RECHECK_SECONDS = 0.001


class Budget:
    """An upper limit on the memory of one or more allocators, `clean` ranges excepted.

    Parameters
    ----------
    limit
        Bytes, or a string such as ``"64GiB"``.
    timeout
        Seconds that an allocation waits for fences and for reclaims under way before it fails.
    """

    def __init__(self, limit: SupportsIndex | str, *, timeout: float = 10.0) -> None:
        self.limit = parse_size(limit)
        self.timeout = timeout
        if self.limit == 0:
            raise BigmemError("a budget of nothing admits no allocation")
        self._core = _core.Budget(min(self.limit, sys.maxsize))
        self._members: dict[int, weakref.ref[NativeAllocator]] = {}

    @property
    def used(self) -> int:
        """Bytes that count against the limit now."""
        return self._core.used()

    def __repr__(self) -> str:
        return f"<Budget {format_size(self.used)} of {format_size(self.limit)}>"

    def _admit(self, allocator: "NativeAllocator") -> None:
        key = id(allocator)
        self._members[key] = weakref.ref(allocator, lambda _: self._members.pop(key, None))

    def _holders(self) -> "list[NativeAllocator]":
        return [found for ref in list(self._members.values()) if (found := ref()) is not None]

    def _make_room(self, nbytes: int, deadline: float) -> None:
        """Reclaim on this thread, or wait a moment for others; raise when nothing will come.

        `nbytes` is what the block counts as. After it returns, the caller tries again: others may
        have taken the room meanwhile.
        """
        _core.poll_fences()
        holders = self._holders()
        missing = self.used + nbytes - self.limit
        reclaimed = False
        for holder in holders:
            if missing <= 0:
                return
            done = holder._core.reclaim(missing)
            missing -= done
            reclaimed = reclaimed or done > 0
        used = self.used
        if reclaimed or used + nbytes <= self.limit:
            return
        stats = [holder.stats() for holder in holders]
        # More charged than held: something is on its way to the system.
        coming = any(s.pending or s.reclaiming for s in stats)
        coming = coming or used > sum(s.resident for s in stats)
        if coming and time.monotonic() < deadline:
            time.sleep(_RECHECK_SECONDS)
            return
        raise OutOfMemory(
            f"no room for {format_size(nbytes)} in a budget of {format_size(self.limit)}; "
            + describe_holders(holders)
        )


def describe_holders(holders: "list[NativeAllocator]") -> str:
    """Who holds how much in which states, the largest first."""
    held = sorted(((h.stats(), h.name) for h in holders), key=lambda item: -item[0].resident)
    parts = [
        f"{name} holds {format_size(stats.live)} live"
        + "".join(
            f", {format_size(amount)} {state}"
            for state in ("pending", "reclaiming", "warm", "lazy")
            if (amount := getattr(stats, state))
        )
        for stats, name in held[:5]
        if stats.resident
    ]
    return "; ".join(parts) if parts else "no allocator holds any"
