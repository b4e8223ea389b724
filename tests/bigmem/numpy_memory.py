"""What the tests of the NumPy hook share."""

import contextlib
import sys
from collections.abc import Iterator
from typing import SupportsIndex

import bigmem


class Counting(bigmem.Allocator):
    """Counts what it is asked for; written in Python, as a user might."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def allocate(
        self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
    ) -> bigmem.Block:
        size = self.check_request(nbytes, alignment)
        self.sizes.append(size)
        return bigmem.Block(bytearray(size), allocator=self)


@contextlib.contextmanager
def raised_unraisable() -> Iterator[list[BaseException | None]]:
    """What is printed as "Exception ignored in" meanwhile."""
    errors: list[BaseException | None] = []
    previous = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: errors.append(unraisable.exc_value)
    try:
        yield errors
    finally:
        sys.unraisablehook = previous
        errors.clear()
