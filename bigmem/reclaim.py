"""Handles on the core's reclaim workers, the only threads of the library."""

import operator
from typing import SupportsIndex

from . import _core
from .errors import BigmemError


class ReclaimPool:
    """Native threads that give memory back in the background.

    They never enter Python. They start at the first allocation whose release may need them, poll
    while there is work and sleep while there can be none. Where threads are refused, allocations
    reclaim in their stead.

    Parameters
    ----------
    workers
        How many threads; more than one helps only where reclaiming is slower than releasing.
    """

    def __init__(self, workers: SupportsIndex = 1) -> None:
        self.workers = operator.index(workers)
        if not 1 <= self.workers <= 64:
            raise BigmemError(f"a pool has 1 to 64 workers, not {self.workers}")
        self._core = _core.ReclaimPool(self.workers)

    @classmethod
    def default(cls) -> "ReclaimPool":
        """The pool that allocators share unless they are given one."""
        pool = cls.__new__(cls)
        pool.workers = 1
        pool._core = _core.ReclaimPool(None)
        return pool

    @property
    def running(self) -> int:
        """How many workers run at this moment."""
        return self._core.running()

    @property
    def replaced(self) -> int:
        """How many workers ended unexpectedly so far, each replaced by a new one."""
        return self._core.replaced()

    def __repr__(self) -> str:
        return f"<ReclaimPool of {self.workers}, {self.running} running>"
