"""The C library, as an allocator: the baseline."""

from functools import partial
from typing import SupportsIndex

from . import _core
from ._core import Block
from .allocator import Allocator, AllocatorStats, Quick


class SystemAllocator(Allocator):
    """Blocks from ``malloc`` and ``calloc``, freed at once by the releasing thread.

    What the C library keeps for itself after a free is not counted anywhere in `stats`.
    """

    def __init__(self, *, name: str | None = None) -> None:
        self._source = _core.System()
        super().__init__(name=name)

    def allocate(
        self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
    ) -> Block:
        size = self.check_request(nbytes, alignment)
        return self._source.allocate(self, size, alignment, zeroed)

    def stats(self) -> AllocatorStats:
        return AllocatorStats(**self._source.counters())

    def _quick(self) -> Quick | None:
        if type(self).allocate is not SystemAllocator.allocate:
            return None
        return partial(self._source.allocate, self)
