"""Arrow's buffers, arrays and tables stand on blocks without a copy, and keep them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import pytest

import bigmem

InUse = Callable[[], int]
COUNT = 50_000


def numbers(allocator: bigmem.Allocator) -> np.ndarray:
    array = bigmem.empty(COUNT, allocator=allocator)
    array[:] = np.arange(COUNT)
    return array


def data_address(array: pa.Array) -> int:
    return array.buffers()[1].address


def test_a_buffer_is_the_block_and_keeps_it(allocator: bigmem.Allocator, in_use: InUse) -> None:
    block = allocator.allocate(1 << 20)
    memoryview(block)[:5] = b"arrow"
    buffer = pa.py_buffer(block)
    assert (buffer.address, buffer.size, buffer.is_mutable) == (block.address, 1 << 20, True)
    part = buffer.slice(2, 3)
    with pytest.raises(bigmem.InvalidRelease, match="still viewed by 1 buffer"):
        block.release()
    del block, buffer
    assert in_use() == 1
    assert part.to_pybytes() == b"row"
    del part
    assert in_use() == 0


def test_a_block_can_be_released_once_arrow_has_let_go(allocator: bigmem.Allocator) -> None:
    block = allocator.allocate(1000)
    buffer = pa.py_buffer(block)
    del buffer
    block.release()
    with pytest.raises(BufferError, match="released"):
        pa.py_buffer(block)


def test_a_buffer_over_an_array_keeps_its_block(allocator: bigmem.Allocator, in_use: InUse) -> None:
    array = numbers(allocator)
    buffer = pa.py_buffer(array)
    assert (buffer.address, buffer.size) == (array.ctypes.data, array.nbytes)
    del array
    assert in_use() == 1
    rebuilt = pa.Array.from_buffers(pa.float64(), COUNT, [None, buffer])
    del buffer
    assert rebuilt[-1].as_py() == COUNT - 1
    del rebuilt
    assert in_use() == 0


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "M8[ns]"])
def test_arrays_are_taken_and_given_back_without_a_copy(
    allocator: bigmem.Allocator, in_use: InUse, dtype: str
) -> None:
    array = bigmem.ones(COUNT, dtype, allocator=allocator)
    address, expected = array.ctypes.data, array.copy()
    arrow = pa.array(array)
    assert data_address(arrow) == address
    del array
    back = arrow.to_numpy(zero_copy_only=True)
    assert back.ctypes.data == address
    del arrow
    assert in_use() == 1
    assert (back == expected).all()
    del back
    assert in_use() == 0


def test_a_table_keeps_the_blocks_of_its_columns(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    left, right = numbers(allocator), numbers(allocator)
    addresses = [left.ctypes.data, right.ctypes.data]
    table = pa.table({"left": left, "right": right})
    assert [data_address(column.chunk(0)) for column in table.columns] == addresses
    del left, right
    assert in_use() == 2
    table = table.slice(10, 20).drop_columns("left")
    assert in_use() == 1
    assert table["right"].to_pylist() == list(range(10, 30))
    del table
    assert in_use() == 0


def test_a_stream_is_written_into_a_block_and_read_in_place(
    allocator: bigmem.Allocator, in_use: InUse
) -> None:
    table = pa.table({"x": np.arange(COUNT), "y": np.linspace(0, 1, COUNT)})
    block = allocator.allocate(2 << 20)
    with pa.FixedSizeBufferWriter(pa.py_buffer(block)) as sink:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    again = pa.ipc.open_stream(pa.py_buffer(block)).read_all()
    inside = range(block.address, block.address + block.nbytes)
    assert all(data_address(column.chunk(0)) in inside for column in again.columns)
    del block, writer, sink
    assert in_use() == 1
    assert again.equals(table)
    del again
    assert in_use() == 0


def columns_from_numpy() -> Any:
    random = np.random.default_rng(7)
    keys, values = random.integers(0, 50, COUNT), random.random(COUNT)
    table = pa.table({"key": keys, "value": values, "double": pa.array(values * 2)})
    sums = table.group_by("key", use_threads=False).aggregate([("value", "sum")]).sort_by("key")
    file = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, file)
    read = pyarrow.parquet.read_table(pa.BufferReader(file.getvalue()))
    assert read.equals(table)
    chosen = read.filter(pyarrow.compute.field("value") > 0.5)
    return [column.to_numpy() for each in (sums, chosen) for column in each.columns]


def test_results_are_the_same_under_the_hook(
    same_under_hook: Callable[[Callable[[], Any]], None],
) -> None:
    same_under_hook(columns_from_numpy)
