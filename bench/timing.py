"""What the benches of the allocators share: arrays on an allocator, a timed call, a percentile."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import bigmem

Array = np.ndarray[Any, Any]


def make_array(allocator: bigmem.Allocator | None, nbytes: int) -> Array:
    """An array of bytes, untouched if fresh; `None` is NumPy itself."""
    if allocator is None:
        return np.empty(nbytes, np.uint8)
    return bigmem.empty(nbytes, np.uint8, allocator=allocator)


def touch(array: Array) -> Array:
    """The same array of bytes, with one byte of each 4 KiB written."""
    array[::4096] = 1
    return array


def timed(action: Callable[..., object], *arguments: object) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - start


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of them do not exceed: of few values, the maximum."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def milliseconds(seconds: float) -> str:
    """Three significant digits, in ms."""
    return f"{seconds * 1e3:.3g}"
