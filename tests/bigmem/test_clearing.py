"""How dirty memory becomes zero, by either way."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import bigmem
from bigmem import _core
from bigmem.native import NativeAllocator

Native = Callable[..., NativeAllocator]
MIB = 1 << 20
OVERWRITE, REPLACE, UNKNOWN = 0, 1, -1


@pytest.fixture(autouse=True)
def verdict_of_the_process() -> Iterator[None]:
    before = _core.clearing_verdict()
    yield
    _core.clearing_verdict(before)


def zeros_where_it_was_dirty(allocator: NativeAllocator, nbytes: int) -> None:
    dirty = bigmem.full(nbytes, 7, np.uint8, allocator=allocator)
    address = dirty.ctypes.data
    del dirty
    zeros = bigmem.zeros(nbytes, np.uint8, allocator=allocator)
    assert zeros.ctypes.data == address
    assert not zeros.any()


@pytest.mark.parametrize("verdict", [OVERWRITE, REPLACE])
@pytest.mark.parametrize("nbytes", [MIB, 2 * MIB, 6 * MIB + 5, 100 * MIB + 4097])
def test_either_way_gives_zeros(native: Native, verdict: int, nbytes: int) -> None:
    _core.clearing_verdict(verdict)
    table = _core.ProbedPages()
    allocator = native(bigmem.Recycle(decay=1000), "always", table=table)
    zeros_where_it_was_dirty(allocator, nbytes)
    whole = nbytes // (2 * MIB) * (2 * MIB)
    expected = (1, whole) if verdict == REPLACE and whole else (0, 0)
    assert table.calls("decommit") == expected


@pytest.mark.parametrize("huge", ["never", "always"])
def test_the_first_large_block_finds_out(native: Native, huge: str) -> None:
    _core.clearing_verdict(UNKNOWN)
    table = _core.ProbedPages()
    allocator = native(bigmem.Recycle(decay=1000), huge, table=table)
    zeros_where_it_was_dirty(allocator, 62 * MIB)
    assert _core.clearing_verdict() == UNKNOWN
    allocator.trim()
    before = table.calls("decommit")[1]
    zeros_where_it_was_dirty(allocator, 70 * MIB)
    found = _core.clearing_verdict()
    given_back = table.calls("decommit")[1] - before
    if huge == "never":
        assert (found, given_back) == (UNKNOWN, 0)
    else:
        assert (found, given_back) in ((OVERWRITE, 32 * MIB), (REPLACE, 38 * MIB))


@pytest.mark.parametrize("verdict", [UNKNOWN, REPLACE])
def test_a_refusal_leaves_overwriting(native: Native, verdict: int) -> None:
    _core.clearing_verdict(verdict)
    table = _core.ProbedPages()
    table.refuse("decommit", 12)
    allocator = native(bigmem.Recycle(decay=1000), "always", table=table)
    zeros_where_it_was_dirty(allocator, 70 * MIB)
    assert _core.clearing_verdict() == (OVERWRITE if verdict == UNKNOWN else REPLACE)


def test_what_must_be_committed_is_overwritten(native: Native) -> None:
    _core.clearing_verdict(REPLACE)
    allocator = native(bigmem.Recycle(decay=1000), "always", table=_core.ProbedPages(True))
    zeros_where_it_was_dirty(allocator, 8 * MIB)
