"""Where a proof's time goes: named stages, timed only if someone asks."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Stage = Callable[[str], AbstractContextManager[None]]
"""Marks the time until the block ends as belonging to the stage of this name."""


def untimed(name: str) -> AbstractContextManager[None]:
    """A `Stage` that does nothing."""
    return nullcontext()


class StageTimes:
    """A `Stage` that adds up wall-clock seconds by name.

    Attributes
    ----------
    seconds
        By stage, in the order in which they first ended.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the block; stages do not nest."""
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed
