"""Pinned blocks under copies: never handed on before the GPU is through with them."""

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from waiting import wait_for

import bigmem
from bench.device import Gpu
from bigmem.cuda import PinnedAllocator, capturing, record

MIB = 1 << 20
UNIT = 2 * MIB  # what the arena grows by: no rest of it is warm beside a block
KERNEL_MS = 30.0
ROUNDS = 1000
Array = np.ndarray[Any, Any]
Make = Callable[[], Array]


def value(number: int) -> int:
    return 1 + number % 250


def wrong_after_upload(gpu: Gpu, make: Make, told: bool, rounds: int) -> int:
    """Rows of the device that a block's next user has spoilt."""
    streams = (gpu.stream(), gpu.stream())
    with gpu.memory(rounds * MIB) as device:
        for number in range(rounds):
            stream = streams[number % 2]
            array = make()
            array[:] = value(number)
            gpu.spin(KERNEL_MS, stream)
            gpu.to_device(device + number * MIB, array.ctypes.data, MIB, stream)
            if told:
                record(array, stream)
            del array
            if number % 8 >= 6:  # by turns, or no block would ever be free again
                gpu.synchronize(stream)
        gpu.synchronize()
        rows = np.empty((rounds, MIB), np.uint8)
        gpu.call("cuMemcpyDtoH_v2", rows.ctypes.data, device, rows.nbytes)
    return sum(bool((row != value(number)).any()) for number, row in enumerate(rows))


def wrong_after_download(gpu: Gpu, make: Make, told: bool, rounds: int) -> int:
    """Blocks that a copy to their former user has spoilt, or that a copy did not reach."""
    streams = (gpu.stream(), gpu.stream())
    wrong = 0
    with gpu.memory(MIB) as device:
        gpu.fill(device, 255, MIB, streams[0])
        gpu.synchronize()
        held: list[tuple[int, Array]] = []
        for number in range(rounds):
            stream = streams[number % 2]
            array = make()
            gpu.spin(KERNEL_MS, stream)
            gpu.to_host(array.ctypes.data, device, MIB, stream)
            if told:
                record(array, stream)
            if number % 8 == 7:
                held.append((255, array))
            del array
            after = make()
            after[:] = value(number)
            held.append((value(number), after))
            if number % 8 == 7:
                del after
                gpu.synchronize()
                wrong += sum(bool((array != expected).any()) for expected, array in held)
                held.clear()
        gpu.synchronize()
    return wrong


@pytest.mark.parametrize("told", [True, False], ids=["recorded", "unrecorded"])
@pytest.mark.parametrize("wrong", [wrong_after_upload, wrong_after_download])
def test_immediate_reuse_spoils_no_byte(
    gpu: Gpu, pinned: PinnedAllocator, wrong: Callable[..., int], told: bool
) -> None:
    def make() -> Array:
        return bigmem.empty(MIB, np.uint8, allocator=pinned)

    assert wrong(gpu, make, told, ROUNDS // 2) == 0
    assert pinned.stats().warm_hits > ROUNDS // 8, "hardly a block was used twice"


@pytest.mark.parametrize("wrong", [wrong_after_upload, wrong_after_download])
def test_the_same_rounds_find_a_careless_allocator(gpu: Gpu, wrong: Callable[..., int]) -> None:
    """One that hands the same block out again at once: what these rounds are there to find."""
    address = gpu.host_alloc(MIB)
    only = np.frombuffer((ctypes.c_ubyte * MIB).from_address(address), np.uint8)
    assert wrong(gpu, lambda: only, False, 16) > 0
    gpu.host_free(address)


def test_recorded_block_waits_for_its_stream_alone(gpu: Gpu, pinned: PinnedAllocator) -> None:
    busy, idle = gpu.stream(), gpu.stream()
    array = bigmem.empty(UNIT, np.uint8, allocator=pinned)
    address = array.ctypes.data
    gpu.spin(300, busy)
    record(array, idle)
    gpu.synchronize(idle)
    del array
    again = bigmem.empty(UNIT, np.uint8, allocator=pinned)
    assert not gpu.idle(busy)
    assert again.ctypes.data == address


def test_block_waits_for_every_recorded_stream(gpu: Gpu, pinned: PinnedAllocator) -> None:
    first, second = gpu.stream(), gpu.stream()
    array = bigmem.empty(UNIT, np.uint8, allocator=pinned)
    address = array.ctypes.data
    gpu.spin(50, first)
    gpu.spin(300, second)
    record(array, first)
    record(array, second)
    del array
    gpu.synchronize(first)
    again = bigmem.empty(UNIT, np.uint8, allocator=pinned)
    assert not gpu.idle(second)
    assert again.ctypes.data != address


@pytest.mark.parametrize("stream", [0, 1, 2], ids=["default", "legacy", "per-thread"])
@pytest.mark.parametrize("told", [True, False], ids=["recorded", "unrecorded"])
def test_default_streams_are_waited_for(
    gpu: Gpu, pinned: PinnedAllocator, stream: int, told: bool
) -> None:
    array = bigmem.empty(UNIT, np.uint8, allocator=pinned)
    address = array.ctypes.data
    gpu.spin(200, stream)
    if told:
        record(array, stream)
    del array
    again = bigmem.empty(UNIT, np.uint8, allocator=pinned)
    assert not gpu.idle(stream)
    assert again.ctypes.data != address
    gpu.synchronize()


def test_an_array_is_found_by_any_view_of_it(gpu: Gpu, pinned: PinnedAllocator) -> None:
    stream = gpu.stream()
    array = bigmem.empty((64, UNIT // 64), np.uint8, allocator=pinned)
    address = array.ctypes.data
    gpu.spin(200, stream)
    record(array[10:20, ::2], stream)
    del array
    assert bigmem.empty(UNIT, np.uint8, allocator=pinned).ctypes.data != address
    gpu.synchronize()


def test_memory_of_nobody_is_refused(gpu: Gpu, pinned: PinnedAllocator) -> None:
    with pytest.raises(bigmem.BigmemError):
        record(np.ones(10), gpu.stream())


def test_array_that_a_callback_drops_comes_back(gpu: Gpu, pinned: PinnedAllocator) -> None:
    stream = gpu.stream()
    held = [bigmem.empty(16 * MIB, np.uint8, allocator=pinned)]
    gpu.spin(20, stream)
    kept = gpu.call_back(stream, held.clear)
    gpu.synchronize(stream)
    assert not held
    assert pinned.flush(5)
    assert pinned.stats().live == 0
    del kept


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread", "relaxed"])
def test_capture_survives_a_release_and_keeps_it_waiting(
    gpu: Gpu, pinned: PinnedAllocator, mode: int
) -> None:
    stream = gpu.stream()
    array = bigmem.empty(UNIT, np.uint8, allocator=pinned)
    address = array.ctypes.data
    with capturing():
        gpu.begin_capture(stream, mode)
        gpu.launch_nothing(stream)
        del array
        time.sleep(0.05)  # time for the workers to do harm
        again = bigmem.empty(UNIT, np.uint8, allocator=pinned)
        assert again.ctypes.data != address
        gpu.launch_nothing(stream)
        assert gpu.end_capture(stream)
    assert pinned.flush(5)
    assert pinned.stats().pending == 0


def test_recording_on_a_capturing_stream_is_refused(gpu: Gpu, pinned: PinnedAllocator) -> None:
    stream = gpu.stream()
    array = bigmem.empty(UNIT, np.uint8, allocator=pinned)
    with capturing():
        gpu.begin_capture(stream, 2)
        with pytest.raises(bigmem.BigmemError, match="graph"):
            record(array, stream)
        assert gpu.end_capture(stream)


def test_blocking_capture_of_nobody_we_know_survives(gpu: Gpu, pinned: PinnedAllocator) -> None:
    """Begun in the driver itself, on a stream that waits for the legacy default stream."""
    stream = gpu.stream(blocking=True)
    array = bigmem.empty(UNIT, np.uint8, allocator=pinned)
    gpu.begin_capture(stream, 2)
    del array
    time.sleep(0.05)
    bigmem.empty(UNIT, np.uint8, allocator=pinned)
    gpu.launch_nothing(stream)
    assert gpu.end_capture(stream)
    wait_for(lambda: pinned.flush(0.1), 5)
