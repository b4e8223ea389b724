"""The memory that a program has, over its life, in a bounded number of samples."""

from __future__ import annotations

import time
from collections.abc import Callable

from bigmem import osmem

_MOST = 20_000


class Resident:
    """Samples of a process's resident bytes: when there are too many, every second one goes.

    Attributes
    ----------
    samples
        Times of the monotonic clock in seconds, and bytes.
    """

    def __init__(self, most: int = _MOST, *, now: Callable[[], float] = time.monotonic) -> None:
        self.samples: list[tuple[float, int]] = []
        self._most = most
        self._now = now
        self._every = 1
        self._calls = 0

    def sample(self, process: int) -> None:
        """Take a sample, or not: called evenly, it takes them evenly."""
        self._calls += 1
        if self._calls % self._every:
            return
        nbytes = osmem.resident_bytes_of(process)
        if nbytes is None:
            return
        self.samples.append((self._now(), nbytes))
        if len(self.samples) >= self._most:
            del self.samples[::2]
            self._every *= 2
