"""One mapping a block, as ``malloc`` makes for huge requests."""

from .arena.pages import AnonymousPages
from .budget import Budget
from .errors import BigmemError
from .native import NativeAllocator
from .reclaim import ReclaimPool
from .release import Deferred, Inline


class MappedAllocator(NativeAllocator):
    """Maps every block by itself and unmaps it on release.

    With `Inline` that is what Rust's Vec and C++'s vector do with huge buffers: the releasing
    thread pays, in one ``munmap``. With `Deferred` it is the detached thread that frees for it:
    a mapping is emptied and unmapped in chunks by the reclaim pool.

    Parameters
    ----------
    pages
        Kind of pages.
    release
        `Inline` or `Deferred`. `Recycle` is refused: keeping ranges for reuse takes an arena.
    budget
        Limit to keep, perhaps together with other allocators.
    reclaim
        Workers that unmap; the process's own if `None`.
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
        release: Inline | Deferred | None = None,
        budget: Budget | None = None,
        reclaim: ReclaimPool | None = None,
        wipe: bool = False,
        name: str | None = None,
    ) -> None:
        chosen = Inline() if release is None else release
        if not isinstance(chosen, Inline | Deferred):
            raise BigmemError(f"MappedAllocator cannot recycle ({chosen!r}); use ArenaAllocator")
        super().__init__(
            pages=AnonymousPages() if pages is None else pages,
            release=chosen,
            reserve=0,
            mapping_per_block=True,
            budget=budget,
            reclaim=reclaim,
            wipe=wipe,
            name=name,
        )
