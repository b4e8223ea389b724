"""CuPy and PyTorch with pinned blocks, and CuPy's own pinned memory from bigmem."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cupy
import cupyx
import numpy as np
import pytest

import bigmem
import bigmem.cuda
from bench.device import Gpu, available
from bigmem.cuda import PinnedAllocator, install_cupy, record, uninstall_cupy

MIB, GIB = 1 << 20, 1 << 30
UNIT = 2 * MIB  # what the arena grows by: no rest of it is warm beside a block


def pin(allocator: bigmem.Allocator, nbytes: int) -> np.ndarray[Any, Any]:
    return bigmem.empty(nbytes, np.uint8, allocator=allocator)


@pytest.fixture
def installed(gpu: Gpu) -> Iterator[PinnedAllocator]:
    """CuPy's pinned memory is this allocator's."""
    with PinnedAllocator(name="of CuPy") as allocator:
        install_cupy(allocator)
        yield allocator
        uninstall_cupy()
        gpu.synchronize()
        assert allocator.flush(10)
        allocator.trim()


def compared_with_cudas(copy: Callable[[], object], nbytes: int) -> float:
    """The time of a copy over that of as many bytes from cudaHostAlloc; pageable memory: 5.

    The best of some that alternate, since others may share the bus.
    """
    memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(nbytes), 0)
    target = cupy.empty(nbytes, np.uint8)

    def copy_theirs() -> None:
        to_device = cupy.cuda.runtime.memcpyHostToDevice
        cupy.cuda.runtime.memcpyAsync(target.data.ptr, memory.ptr, nbytes, to_device, 0)

    seconds: list[float] = []
    for one in (copy, copy_theirs) * 6:
        start = time.perf_counter()
        one()
        cupy.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[2::2]) / min(seconds[3::2])


def test_cupy_copies_a_pinned_array_without_staging(
    pinned: PinnedAllocator, installed: PinnedAllocator
) -> None:
    array = pin(pinned, GIB)
    array[:] = 7
    cupy.asarray(array[:MIB])
    allocations, before = installed.stats().allocations, available()
    device = cupy.asarray(array)
    cupy.cuda.Device().synchronize()
    assert installed.stats().allocations == allocations
    assert before - available() < GIB // 2
    assert bool((device == 7).all())
    assert compared_with_cudas(lambda: cupy.asarray(array), GIB) <= 1.25


def test_cupy_takes_its_pinned_memory_from_bigmem(installed: PinnedAllocator) -> None:
    array = cupyx.empty_pinned((3, MIB), np.float32)
    assert installed.stats().live >= array.nbytes
    array[:] = 1.5
    assert float(cupy.asarray(array).sum()) == 1.5 * array.size
    record(array[1], cupy.cuda.Stream.null)  # found by its address
    del array
    assert installed.flush(5)
    before = installed.stats().allocations
    staged = cupy.asarray(np.full(4 * MIB, 3, np.uint8))
    assert installed.stats().allocations > before
    assert bool((cupy.asnumpy(staged) == 3).all())


def test_staging_is_safe_without_records(installed: PinnedAllocator) -> None:
    """Many uploads behind a kernel, through few blocks: none overtakes another."""
    spin = cupy.RawKernel(
        'extern "C" __global__ void wait() { long long s = clock64();'
        " while (clock64() - s < 20000000LL) {} }",
        "wait",
    )
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    made = []
    for number in range(200):
        with streams[number % 2]:
            spin((1,), (1,), ())
            made.append(cupy.asarray(np.full(MIB, number, np.uint8)))
    for stream in streams:
        stream.synchronize()
    assert [int(each.min()) for each in made] == list(range(200))
    assert [int(each.max()) for each in made] == list(range(200))


def test_uninstall_restores_cupys_pool(installed: PinnedAllocator) -> None:
    pool = cupy.get_default_pinned_memory_pool()
    uninstall_cupy()
    uninstall_cupy()
    before = installed.stats().allocations
    pool.free_all_blocks()
    array = cupyx.empty_pinned(MIB, np.uint8)
    del array
    assert installed.stats().allocations == before
    assert pool.n_free_blocks() == 1


@pytest.mark.parametrize("blocking", [False, True], ids=["non-blocking", "blocking"])
def test_cupy_capture_survives_a_release(gpu: Gpu, pinned: PinnedAllocator, blocking: bool) -> None:
    stream = cupy.cuda.Stream(non_blocking=not blocking)
    device = cupy.zeros(1000)
    device += 1  # compiles what the graph will hold
    array = pin(pinned, UNIT)
    address = array.ctypes.data
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        device += 1
        del array
        time.sleep(0.05)
        again = pin(pinned, UNIT)
        assert again.ctypes.data != address
        device += 1
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert float(device[0]) == 3
    assert pinned.flush(5)
    assert pinned.stats().pending == 0


@pytest.fixture
def torch() -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch is built without CUDA")
    return torch


def test_torch_copies_asynchronously_at_full_speed(
    gpu: Gpu, pinned: PinnedAllocator, torch: Any
) -> None:
    array = pin(pinned, GIB)
    array[:] = 9
    source = torch.from_numpy(array)
    target = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        target.copy_(source, non_blocking=True)
        stream.synchronize()
        gpu.spin(300, stream.cuda_stream)
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        returned = time.perf_counter() - start
        assert not stream.query()
        record(source, stream)
        stream.synchronize()
        assert bool((target == 9).all())
        copy = partial(target.copy_, source, non_blocking=True)
        assert compared_with_cudas(copy, GIB) <= 1.25
    assert returned <= 0.05


def test_torch_tensor_is_found_by_its_address(
    gpu: Gpu, pinned: PinnedAllocator, torch: Any
) -> None:
    array = pin(pinned, UNIT)
    address = array.ctypes.data
    stream = torch.cuda.Stream()
    gpu.spin(200, stream.cuda_stream)
    record(torch.from_numpy(array)[100:], stream)
    del array
    assert pin(pinned, UNIT).ctypes.data != address
    stream.synchronize()


def test_torch_capture_survives_a_release(gpu: Gpu, pinned: PinnedAllocator, torch: Any) -> None:
    device = torch.zeros(1000, device="cuda")
    array = pin(pinned, UNIT)
    address = array.ctypes.data
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        device += 1
        del array
        time.sleep(0.05)
        again = pin(pinned, UNIT)
        assert again.ctypes.data != address
    graph.replay()
    torch.cuda.synchronize()
    assert float(device[0]) == 1
    assert pinned.flush(5)
    assert pinned.stats().pending == 0


def test_upload_serves_both_libraries(pinned: PinnedAllocator, torch: Any) -> None:
    hosts = [np.arange(5 * MIB, dtype=np.uint32), np.random.default_rng(1).random((300, 1000))]
    targets = [cupy.empty(5 * MIB, np.uint32), torch.empty((300, 1000), dtype=torch.float64).cuda()]
    stream = cupy.cuda.Stream(non_blocking=True)
    bigmem.cuda.upload(hosts, targets, stream, allocator=pinned, chunk="3MiB")
    stream.synchronize()
    assert np.array_equal(cupy.asnumpy(targets[0]), hosts[0])
    assert np.array_equal(targets[1].cpu().numpy(), hosts[1])


@pytest.mark.skipif(cupy.cuda.runtime.getDeviceCount() < 2, reason="there is one GPU")
def test_every_device_copies_from_its_own_allocator() -> None:
    for number in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(number), PinnedAllocator(number) as allocator:
            array = pin(allocator, 64 * MIB)
            array[:] = 1 + number
            stream = cupy.cuda.Stream(non_blocking=True)
            device = cupy.empty(64 * MIB, np.uint8)
            device.set(array, stream)
            record(array, stream)
            stream.synchronize()
            assert bool((device == 1 + number).all())
            del array
            assert allocator.flush(5)
