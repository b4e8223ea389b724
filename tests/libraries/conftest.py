"""What the tests beside other libraries share."""

import itertools
from collections.abc import Callable, Iterator

import pytest

import bigmem

BUILT_IN = ("system", "mapped", "dontneed", "deferred", "recycle")
_serial = itertools.count()


@pytest.fixture(params=BUILT_IN)
def allocator(request: pytest.FixtureRequest) -> Iterator[bigmem.Allocator]:
    """Each allocator of our own; no block of it may be in use when the test is over."""
    made = bigmem.make(request.param)
    made.name = f"{request.param}-{next(_serial)}"  # tells its blocks from all others
    yield made
    assert _in_use(made) == 0
    made.close()


@pytest.fixture
def in_use(allocator: bigmem.Allocator) -> Callable[[], int]:
    """How many blocks of `allocator` are in use.

    Nobody collects garbage first: a block must die with its last reference.
    """
    return lambda: _in_use(allocator)


def _in_use(allocator: bigmem.Allocator) -> int:
    listed = sum(block.allocator == allocator.name for block in bigmem.live_blocks())
    stats = allocator.stats()
    assert stats.allocations - stats.releases == listed
    return listed
