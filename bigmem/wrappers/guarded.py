"""Memory errors that stop where they happen."""

import mmap
import sys
from typing import SupportsIndex

from .. import _core
from .._core import Block
from ..allocator import Allocator
from ..errors import OutOfMemory
from ..sizes import parse_size
from .base import Wrapper


class Guarded(Wrapper):
    """Puts every block between inaccessible pages, and released ones out of reach for a while.

    Native code that reads or writes past the end of a block, before its beginning, or after its
    release dies of SIGSEGV at that instruction; before it does, a report on the standard error
    names the block, the access, and the Python code that allocated and released the block. Handlers
    that were there before, as `faulthandler`'s, still run; one that comes after the last allocation
    here is asked first, and hides the report.

    * The end of a block lies at the upper guard as far as the alignment permits: with the default
      of 64 bytes up to 63 bytes are between. They, and the rest of the first page, are filled with
      0xFD and checked at release; damage there is reported through `sys.unraisablehook`.
    * Memory that was not asked for as zero is filled with 0xCB.
    * Released blocks go back to the upstream in the order of their release, when more than
      `quarantine` bytes wait, or at `trim` and `close`. They count as live in `stats` until then.

    It is a tool for finding errors: an allocation and a release cost system calls, a block costs at
    least two pages more than its size, and three or so of the mappings that ``vm.max_map_count``
    (usually 65530) bounds, some of which stay when the blocks are gone; beyond that allocations
    raise `OutOfMemory`. Views that are alive keep
    their block: only access that Python does not know of, through an address, can be too late.
    System calls do not fault: given such memory they fail with EFAULT.

    Parameters
    ----------
    upstream
        Where the memory comes from; any allocator whose blocks are memory of this process alone
        and can be aligned to pages.
    quarantine
        Bytes, guards included, that wait after their release.
    name
        What reports call it.
    """

    def __init__(
        self,
        upstream: Allocator,
        *,
        quarantine: SupportsIndex | str = "256MiB",
        name: str | None = None,
    ) -> None:
        self.quarantine = parse_size(quarantine)
        self._quarantine = _core.Quarantine(min(self.quarantine, sys.maxsize))
        super().__init__(upstream, name=name)

    @property
    def quarantined(self) -> int:
        """Bytes that wait in quarantine now."""
        return self._quarantine.held()

    def allocate(
        self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
    ) -> Block:
        """Return a guarded block; `Allocator.allocate` says how.

        Raises
        ------
        OutOfMemory
            The upstream has no room, or the process no mappings left for the guards.
        BigmemError
            The upstream's memory cannot be protected.
        """
        size = self.check_request(nbytes, alignment)
        try:
            return self._guard(size, alignment, zeroed)
        except OutOfMemory:
            if not self._quarantine.empty():
                raise
            return self._guard(size, alignment, zeroed)

    def trim(self) -> int:
        self._quarantine.empty()
        return super().trim()

    def close(self) -> None:
        super().close()
        self._quarantine.close()

    def _guard(self, size: int, alignment: int, zeroed: bool) -> Block:
        page = mmap.PAGESIZE
        # A guard on either side; a block that is aligned to more than a page may begin late.
        room = page + max(0, alignment - page) + -(-size // page) * page + page
        block = self.upstream.allocate(room, alignment=page, zeroed=zeroed)
        return self._quarantine.guard(block, size, alignment, zeroed, self, self.name)
