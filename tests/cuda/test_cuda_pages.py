"""Which memory is there, chunk by chunk, beside a model; and a driver that refuses."""

import ctypes
import errno
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigmem import _core

MIB = 1 << 20
UNIT = 2 * MIB
UNITS = 13
CHUNK = 4
OUT_OF_MEMORY, UNKNOWN = 2, 999
COMMIT_CALLS = ["cuMemCreate", "cuMemMap", "cuMemSetAccess"]


class Region:
    """A reserved range, used by several owners as an arena does."""

    def __init__(self, fake: _core.FakeCuda) -> None:
        self.fake = fake
        driver = _core.CudaDriver(fake.functions())
        self.pages = _core.CudaPages(driver, 0, "vmm", _core.CudaFences(driver))
        self.begin = self.pages.reserve(UNITS * UNIT, UNIT)

    def range(self, first: int, last: int) -> tuple[int, int]:
        return self.begin + first * UNIT, (last - first) * UNIT

    def commit(self, first: int, last: int) -> int:
        return self.pages.commit(*self.range(first, last))

    def decommit(self, first: int, last: int) -> int:
        return self.pages.decommit(*self.range(first, last))

    def bytes(self, unit: int) -> npt.NDArray[np.uint8]:
        """One of each page of a unit."""
        memory = (ctypes.c_ubyte * UNIT).from_address(self.begin + unit * UNIT)
        return np.frombuffer(memory, np.uint8)[::4096]

    def units(self) -> int:
        return (self.fake.memory()) // UNIT

    def end(self) -> None:
        assert self.pages.unreserve(self.begin, UNITS * UNIT) == 0
        assert self.fake.memory() == 0


@pytest.fixture
def region(fake: _core.FakeCuda) -> Iterator[Region]:
    made = Region(fake)
    yield made
    made.end()


def test_commit_takes_whole_chunks_and_units_around_them(region: Region) -> None:
    assert region.commit(1, 10) == 0
    assert region.units() == 9
    # 1, 2, 3, then 4 to 8, then 8, 9
    assert region.fake.mappings() == 6
    assert region.fake.calls("cuMemSetAccess") == 1


def test_what_is_there_is_committed_without_a_call(region: Region) -> None:
    assert region.commit(0, 9) == 0
    region.bytes(3)[:] = 7
    calls = region.fake.calls()
    assert region.commit(0, 9) == region.commit(3, 4) == 0
    assert region.fake.calls() == calls
    assert (region.bytes(3) == 7).all()


def test_a_part_of_a_chunk_is_zero_and_goes_with_the_rest(region: Region) -> None:
    assert region.commit(0, 4) == 0
    for unit in range(4):
        region.bytes(unit)[:] = unit + 1
    assert region.decommit(1, 3) == 0
    assert region.units() == 4
    calls = region.fake.calls()
    assert region.commit(2, 3) == 0
    assert region.fake.calls() == calls
    assert not region.bytes(2).any()
    assert (region.bytes(0) == 1).all()
    assert (region.bytes(3) == 4).all()
    assert region.decommit(2, 4) == region.decommit(0, 1) == 0
    assert region.units() == 0
    assert region.fake.calls("cuMemUnmap") == 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, UNITS - 1), st.integers(1, UNITS)), max_size=12
    )
)
def test_memory_is_what_the_model_says(steps: list[tuple[bool, int, int]]) -> None:
    region = Region(_core.FakeCuda())
    used: dict[int, int] = {}  # the value that each unit in use is filled with
    for number, (commit, first, size) in enumerate(steps, 1):
        last = min(UNITS, first + size)
        if commit:
            fresh = [unit for unit in range(first, last) if unit not in used]
            calls = region.fake.calls()
            assert region.commit(first, last) == 0
            if not fresh:
                assert region.fake.calls() == calls
            for unit in fresh:
                assert not region.bytes(unit).any()
                region.bytes(unit)[:] = used[unit] = number
        else:
            assert region.decommit(first, last) == 0
            for unit in range(first, last):
                used.pop(unit, None)
        assert all((region.bytes(unit) == value).all() for unit, value in used.items())
        # No more is kept than the chunks that the units in use may be part of.
        chunks = {unit // CHUNK for unit in used}
        assert len(used) <= region.units() <= len(chunks) * CHUNK
    assert region.decommit(0, UNITS) == 0
    assert region.units() == 0
    region.end()


@pytest.mark.parametrize("function", COMMIT_CALLS)
@pytest.mark.parametrize("after", range(6))
def test_a_refused_commit_leaves_nothing(region: Region, function: str, after: int) -> None:
    assert region.commit(5, 6) == 0
    region.bytes(5)[:] = 5
    region.fake.fail(function, OUT_OF_MEMORY, after=after, times=1)
    refused = region.commit(0, UNITS)
    failing = after < {"cuMemSetAccess": 2}.get(function, 7)
    assert refused == (errno.ENOMEM if failing else 0)
    if failing:
        assert region.pages.take_failure() == (function, OUT_OF_MEMORY)
        assert region.units() == 1
    assert (region.bytes(5) == 5).all()
    assert region.commit(0, UNITS) == 0
    assert region.units() == UNITS
    assert region.decommit(0, UNITS) == 0
    assert region.units() == 0


def test_other_refusals_are_named(region: Region) -> None:
    region.fake.fail("cuMemCreate", UNKNOWN)
    assert region.commit(0, 1) == errno.EIO
    assert region.pages.take_failure() == ("cuMemCreate", UNKNOWN)
    assert region.pages.take_failure() is None


def test_a_refused_unmap_keeps_what_it_was_about(region: Region) -> None:
    assert region.commit(0, 12) == 0
    region.fake.fail("cuMemUnmap", UNKNOWN, after=1, times=1)
    assert region.decommit(0, 12) == errno.EIO
    assert region.units() == 4
    calls = region.fake.calls("cuMemCreate")
    assert region.commit(0, 12) == 0
    assert region.fake.calls("cuMemCreate") == calls + 2
    assert region.decommit(0, 12) == 0
    assert region.units() == 0


def test_halves_of_a_chunk_may_go_at_once(region: Region) -> None:
    for _ in range(30):
        assert region.commit(0, 4) == 0
        ready = threading.Barrier(2)
        errors: list[int] = []

        def give_up(
            first: int, ready: threading.Barrier = ready, errors: list[int] = errors
        ) -> None:
            ready.wait()
            errors.append(region.decommit(first, first + 2))

        threads = [threading.Thread(target=give_up, args=(first,)) for first in (0, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == [0, 0]
        assert region.units() == 0


def test_a_commit_waits_for_its_chunk_to_be_unmapped(region: Region) -> None:
    assert region.commit(0, 4) == 0
    assert region.decommit(0, 2) == 0
    region.fake.delay("cuMemUnmap", 0.05)
    ender = threading.Thread(target=region.decommit, args=(2, 4))
    ender.start()
    while not region.fake.calls("cuMemUnmap"):
        pass
    assert region.commit(0, 1) == 0
    region.bytes(0)[:] = 1  # ends us by a signal if it is not there
    ender.join()
    assert region.units() == 1


def test_wiping_spares_what_is_not_there(region: Region) -> None:
    assert region.commit(2, 3) == 0
    region.bytes(2)[:] = 3
    assert region.pages.wipe(*region.range(0, UNITS)) == 0
    assert not region.bytes(2).any()


def test_alignment_beyond_a_unit() -> None:
    fake = _core.FakeCuda()
    driver = _core.CudaDriver(fake.functions())
    pages = _core.CudaPages(driver, 0, "vmm", _core.CudaFences(driver))
    begin = pages.reserve(4 * UNIT, 1 << 30)
    assert begin % (1 << 30) == 0
    assert pages.commit(begin + 3 * UNIT, UNIT) == 0
    assert pages.unreserve(begin, 4 * UNIT) == 0


def test_a_driver_that_lacks_a_function_is_refused() -> None:
    functions = _core.FakeCuda().functions()
    del functions["cuCtxRecordEvent"]
    with pytest.raises(_core.BigmemError, match=r"no cuCtxRecordEvent, which came with CUDA 12\.5"):
        _core.CudaDriver(functions)


def test_a_range_given_up_in_parts_goes_as_a_whole(fake: _core.FakeCuda) -> None:
    region = Region(fake)
    assert region.commit(0, UNITS) == 0
    for first, last in ((5, 9), (0, 5), (9, UNITS)):
        assert region.units() == UNITS
        assert region.pages.unreserve(*region.range(first, last)) == 0
    assert region.units() == 0
