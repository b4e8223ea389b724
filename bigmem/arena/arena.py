"""Blocks cut from reserved address ranges."""

from typing import SupportsIndex

from ..budget import Budget
from ..native import NativeAllocator
from ..reclaim import ReclaimPool
from ..release import Recycle, ReleasePolicy
from ..sizes import parse_size
from .pages import AnonymousPages


class ArenaAllocator(NativeAllocator):
    """Cuts blocks from an address range that is reserved once, at the first allocation.

    A release is a hand-over in microseconds whatever the size (except under `Inline`). Best fit
    over warm memory first; blocks are rounded to 4 KiB. Those of huge pages begin on a border of
    2 MiB, and what they leave of their last huge page serves smaller blocks.

    Parameters
    ----------
    pages
        Kind of pages.
    release
        What becomes of released memory: `Inline`, `Deferred` or `Recycle`.
    reserve
        Address range to reserve at a time, in bytes or as a string; it costs no memory. `None`
        takes twice the machine's memory, or little where the address range is limited.
    budget
        Limit to keep, perhaps together with other allocators.
    reclaim
        Workers that give memory back; the process's own if `None`.
    wipe
        Whether contents are secret: overwritten before a released range can be reused or read by
        anyone (in the background, except under `Inline`), left out of core dumps, and zero in a
        forked child, whose copies of live blocks are zero too.
    name
        What reports call it.
    """

    def __init__(
        self,
        *,
        pages: AnonymousPages | None = None,
        release: ReleasePolicy | None = None,
        reserve: SupportsIndex | str | None = None,
        budget: Budget | None = None,
        reclaim: ReclaimPool | None = None,
        wipe: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            pages=AnonymousPages() if pages is None else pages,
            release=Recycle() if release is None else release,
            reserve=0 if reserve is None else parse_size(reserve),
            mapping_per_block=False,
            budget=budget,
            reclaim=reclaim,
            wipe=wipe,
            name=name,
        )
