"""Pickling arrays in band and, with protocol 5, out of band from and into blocks."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bigmem

InUse = Callable[[], int]
SHAPE = (300, 400)


def sample(allocator: bigmem.Allocator, order: Any = "C", dtype: Any = "f8") -> np.ndarray:
    array = bigmem.empty(SHAPE, dtype, order, allocator=allocator)
    array[:] = np.arange(array.size).reshape(SHAPE)
    return array


def blocks_like(buffers: list[pickle.PickleBuffer], allocator: bigmem.Allocator) -> list[Any]:
    """As a receiver would: the bytes of each buffer, in a block of its own."""
    blocks = []
    for buffer in buffers:
        with buffer.raw() as raw:
            blocks.append(allocator.allocate(raw.nbytes))
            memoryview(blocks[-1])[:] = raw
    return blocks


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
def test_in_band_the_copy_is_on_its_own(
    allocator: bigmem.Allocator, in_use: InUse, protocol: int, order: str
) -> None:
    array = sample(allocator, order)
    expected = np.array(array, order="K")
    data = pickle.dumps(array, protocol)
    del array
    assert in_use() == 0
    loaded = pickle.loads(data)
    assert (loaded == expected).all()
    assert loaded.strides == expected.strides
    assert allocator.stats().allocations == 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "i2", "c16", "f4,i4"])
def test_out_of_band_the_memory_itself_is_handed_over(
    allocator: bigmem.Allocator, in_use: InUse, order: str, dtype: str
) -> None:
    array = sample(allocator, order, dtype)
    address, nbytes, expected = array.ctypes.data, array.nbytes, array.copy()
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(array, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 1000
    view = np.frombuffer(buffers[0].raw(), np.uint8)
    assert (view.ctypes.data, view.nbytes) == (address, nbytes)
    del array, view
    assert in_use() == 1  # held by the pickle's buffers

    blocks = blocks_like(buffers, allocator)
    buffers.clear()
    assert in_use() == 1
    loaded = pickle.loads(data, buffers=blocks)
    assert loaded.ctypes.data == blocks[0].address
    assert loaded.flags.writeable
    with pytest.raises(bigmem.InvalidRelease):
        blocks[0].release()
    blocks.clear()
    assert in_use() == 1
    assert (loaded == expected).all()
    del loaded
    assert in_use() == 0


def test_loading_from_the_same_buffers_shares_the_memory(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    array = sample(allocator)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps({"here": array}, protocol=5, buffer_callback=buffers.append)
    loaded = pickle.loads(data, buffers=buffers)["here"]
    loaded[3, 4] = -1.0
    assert array[3, 4] == -1.0
    del array
    buffers.clear()
    assert in_use() == 1
    del loaded
    assert in_use() == 0


def test_many_arrays_travel_each_by_its_own_buffer(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    cargo = {str(k): bigmem.full(k * 1000, k, allocator=allocator) for k in range(1, 9)}
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(cargo, protocol=5, buffer_callback=buffers.append)
    loaded = pickle.loads(data, buffers=blocks_like(buffers, allocator))
    buffers.clear()
    cargo.clear()
    assert in_use() == 8
    assert all((loaded[str(k)] == np.full(k * 1000, k)).all() for k in range(1, 9))
    for k in range(1, 9):
        del loaded[str(k)]
        assert in_use() == 8 - k


def test_blocks_and_views_that_are_not_contiguous(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    block = allocator.allocate(4096)
    memoryview(block)[:] = bytes(range(256)) * 16
    whole: list[pickle.PickleBuffer] = []
    pickle.dumps(pickle.PickleBuffer(block), protocol=5, buffer_callback=whole.append)
    with pytest.raises(bigmem.InvalidRelease):
        block.release()
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(block)  # an address means nothing elsewhere
    whole.clear()
    block.release()

    stripes = sample(allocator)[::3, ::7]
    assert (pickle.loads(pickle.dumps(stripes, protocol=5)) == stripes).all()
    del stripes
    assert in_use() == 0


def test_under_the_hook_large_arrays_keep_the_bytes_they_came_as(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    large = pickle.dumps(np.ones(SHAPE))
    small = pickle.dumps(np.ones(100, ">i2"))
    bigmem.install(allocator, min_bytes=1)
    try:
        loaded = [pickle.loads(large), pickle.loads(small)]
    finally:
        bigmem.uninstall()
    assert [array.sum() for array in loaded] == [120_000, 100]
    assert in_use() == 1  # those of the large one are a bytes object, which is Python's
    del loaded
    assert in_use() == 0
