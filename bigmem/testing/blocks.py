"""Blocks whose bytes are all alike, a fence whose time a test decides, and patience."""

import time
from collections.abc import Callable

import numpy as np

from .._core import Block

SIZES = (0, 1, 63, 4096, 4097, 100_000, (2 << 20) - 1, 2 << 20, (5 << 20) + 13, 9 << 20)
"""Sizes around what allocators treat differently: nothing, pages, huge pages."""


def fill(block: Block, value: int) -> None:
    """Write `value` to every byte."""
    np.frombuffer(memoryview(block), np.uint8)[:] = value


def holds(block: Block, value: int) -> bool:
    """Whether every byte is `value`."""
    return bool((np.frombuffer(memoryview(block), np.uint8) == value).all())


class Event:
    """A fence that is done when `is_done` is set."""

    def __init__(self) -> None:
        self.is_done = False
        self.asked = 0

    def done(self) -> bool:
        """What allocators ask."""
        self.asked += 1
        return self.is_done


def in_time(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether the condition comes to hold within that time; asks every few milliseconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
