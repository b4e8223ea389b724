"""DLPack: consumers see the memory itself and keep its block."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import bigmem

InUse = Callable[[], int]


def test_a_capsule_keeps_the_block_until_it_dies_unused(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    array = bigmem.zeros(1000, allocator=allocator)
    capsule = array.__dlpack__()
    del array
    assert in_use() == 1
    del capsule
    assert in_use() == 0


class Producer:
    """Whatever has the protocol's two methods: here, a capsule made before and its array gone."""

    def __init__(self, array: np.ndarray) -> None:
        self._capsule, self._device = array.__dlpack__(), array.__dlpack_device__()

    def __dlpack__(self, **_: Any) -> Any:
        return self.__dict__.pop("_capsule")

    def __dlpack_device__(self) -> Any:
        return self._device


def test_a_consumer_owns_what_it_took_from_the_capsule(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    array = bigmem.full((30, 40), 7.0, allocator=allocator)[::2, 5:]
    address, shape, strides = array.ctypes.data, array.shape, array.strides
    producer = Producer(array)
    del array
    taken = np.from_dlpack(producer)
    assert (taken.ctypes.data, taken.shape, taken.strides) == (address, shape, strides)
    del producer
    assert in_use() == 1
    assert (taken == 7).all()
    row = taken[3]
    del taken
    assert in_use() == 1
    assert row.tolist() == [7.0] * 35
    del row
    assert in_use() == 0


@pytest.mark.parametrize("dtype", [bool, "i1", "u2", "i4", "f4", "f8", "c16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_type_and_order_crosses_in_place(
    allocator: bigmem.Allocator, in_use: InUse, dtype: Any, order: Any
) -> None:
    array = bigmem.ones((3, 5, 7), dtype, order, allocator=allocator)
    taken = np.from_dlpack(array)
    assert (taken.ctypes.data, taken.strides) == (array.ctypes.data, array.strides)
    assert taken.dtype == array.dtype
    array[1, 2, 3] = 0
    assert taken[1, 2, 3] == 0
    del array
    assert in_use() == 1
    del taken


def test_a_copy_that_was_asked_for_holds_nothing(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    array = bigmem.ones(1000, allocator=allocator)
    copied = np.from_dlpack(array, copy=True)
    del array
    assert in_use() == 0
    assert copied.sum() == 1000


def test_a_chain_of_libraries_holds_the_block_by_its_last_link(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    array = bigmem.ones(1000, allocator=allocator)
    address = array.ctypes.data
    last = np.from_dlpack(pa.array(np.from_dlpack(array)))
    del array
    assert last.ctypes.data == address
    assert in_use() == 1
    del last
    assert in_use() == 0


def test_explicit_release_is_refused_while_a_consumer_lives(allocator: bigmem.Allocator) -> None:
    block = allocator.allocate(8000)
    taken = np.from_dlpack(np.frombuffer(block))
    with pytest.raises(bigmem.InvalidRelease):
        block.release()
    del taken
    block.release()
