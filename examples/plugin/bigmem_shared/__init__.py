"""Arrays that forked workers fill in place."""

import mmap
from typing import SupportsIndex

import bigmem

__all__ = ["SharedAllocator"]


class SharedAllocator(bigmem.Allocator):
    """Every block is a mapping that the process shares with the children that it forks.

    What a child writes, its parent sees. Blocks are unmapped when their last reference is gone, in
    the parent and in each child. Children that are started anew (``spawn``) share nothing.
    """

    def allocate(
        self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
    ) -> bigmem.Block:
        """As `bigmem.Allocator.allocate`; new mappings are zero, whether asked for or not."""
        size = self.check_request(nbytes, alignment)
        # The kernel aligns mappings to pages: what is asked for beyond that must be left room for.
        slack = max(0, alignment - mmap.PAGESIZE)
        try:
            mapping = memoryview(mmap.mmap(-1, max(size, 1) + slack))
        except (OSError, OverflowError) as error:
            raise bigmem.OutOfMemory(f"no {size} bytes to share: {error}") from None
        offset = -bigmem.Block(mapping, allocator=self).address % alignment if slack else 0
        return bigmem.Block(mapping[offset : offset + size], allocator=self)
