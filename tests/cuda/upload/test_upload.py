"""Uploads through pinned blocks, to a GPU whose copies happen when the test says so."""

import array
import ctypes
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import wait_for

import bigmem
import bigmem.cuda
from bigmem import _core
from bigmem.cuda import PinnedAllocator, Uploads, capturing, default, driver, upload
from bigmem.cuda.pinned import is_pinned

from .gpu_memory import (
    ILLEGAL_ADDRESS,
    KIB,
    MIB,
    Array,
    OnDevice,
    Tensor,
    arrived,
    numbers,
)

# The package shows the function under this name.
module = importlib.import_module("bigmem.cuda.upload")


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(0, 2 * MIB), max_size=5),
    offset=st.integers(0, 65),
    chunk=st.sampled_from([1, 4 * KIB, 300_001, MIB, 8 * MIB]),
    depth=st.integers(1, 3),
    threads=st.sampled_from([1, 2, 3, 16]),
)
def test_everything_arrives(
    fake: _core.FakeCuda,
    stream: int,
    allocator: PinnedAllocator,
    at_work: None,
    sizes: list[int],
    offset: int,
    chunk: int,
    depth: int,
    threads: int,
) -> None:
    """Wherever sources begin and end, and whatever the constants of the module are."""
    if chunk < 100_000:
        sizes = [size // 64 for size in sizes]
    hosts = [numbers(offset + size, seed)[offset:] for seed, size in enumerate(sizes)]
    targets = [OnDevice(host) for host in hosts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_THREADS", threads)
        upload(iter(hosts), iter(targets), stream, depth, allocator=allocator, chunk=chunk)
    fake.finish(stream)
    assert arrived(hosts, targets)


def test_hosts_may_change_on_return_and_copies_are_still_to_come(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator
) -> None:
    host = numbers(4 * MIB)
    before, target = host.copy(), OnDevice(host)
    upload([host], [target], stream, 4, allocator=allocator, chunk=MIB)
    host[:] = 0
    assert not target.array.any()
    fake.finish(stream)
    assert np.array_equal(target.array, before)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 2 * 4 * KIB),
        (9 * KIB, 2 * 16 * KIB),
        (512 * KIB, 2 * 512 * KIB),
        (MIB, 2 * 2 * 512 * KIB),
        (8 * MIB, 3 * 2 * 512 * KIB),
    ],
)
def test_pinned_memory_is_for_the_threads_that_have_something_to_do(
    stream: int, allocator: PinnedAllocator, at_work: None, size: int, expected: int
) -> None:
    host = numbers(size)
    upload([host], [OnDevice(host)], stream, allocator=allocator, chunk="512KiB")
    assert allocator.stats().peak_live == expected


def test_larger_arrays_after_small_ones(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator, at_work: None
) -> None:
    """What was sent through the smaller block stays there until the GPU has read it."""
    hosts = [numbers(size, size) for size in (3, 70 * KIB, 3 * MIB, 5, 20 * MIB)]
    targets = [OnDevice(host) for host in hosts]
    upload(hosts, targets, stream, 1, allocator=allocator, chunk="2MiB")
    fake.finish(stream)
    assert arrived(hosts, targets)


def test_later_arrays_overwrite_earlier_ones(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator, at_work: None
) -> None:
    """Threads submit in any order, but those of one array all before those of the next."""
    hosts = [numbers(3 * MIB, seed) for seed in range(4)]
    target = OnDevice(hosts[0])
    upload(hosts, [target] * 4, stream, allocator=allocator, chunk="64KiB")
    fake.finish(stream)
    assert np.array_equal(target.array, hosts[-1])


def test_one_buffer_may_serve_for_all_hosts(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator, at_work: None
) -> None:
    """An array has been read before the next is asked for."""
    room = np.empty(3 * MIB, np.uint8)

    def hosts() -> Iterator[Array]:
        for seed in range(4):
            room[:] = numbers(len(room), seed)
            yield room

    targets = [OnDevice(room) for _ in range(4)]
    upload(hosts(), targets, stream, allocator=allocator, chunk="64KiB")
    fake.finish(stream)
    for seed, target in enumerate(targets):
        assert np.array_equal(target.array, numbers(len(room), seed))


def test_several_uploads_through_the_same_memory(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator, at_work: None
) -> None:
    """Which stays as it is until it is closed, and is as large as the largest needs."""
    sizes = [8 * MIB, 3, 8 * MIB, 70 * KIB, 8 * MIB]
    hosts = [numbers(size, seed) for seed, size in enumerate(sizes)]
    targets = [OnDevice(host) for host in hosts]
    with Uploads(stream, allocator=allocator, chunk="512KiB") as uploads:
        for host, target in zip(hosts, targets, strict=True):
            uploads.send([host], [target])
        stats = allocator.stats()
        assert (stats.allocations, stats.releases) == (1, 0)
        assert stats.live == 3 * 2 * 512 * KIB
    assert allocator.stats().live == 0
    uploads.send([hosts[0]], [targets[0]])  # with a block of its own
    uploads.close()
    uploads.close()
    assert allocator.stats().releases == 2
    fake.finish(stream)
    assert arrived(hosts, targets)


def test_memory_of_a_copy_that_was_refused_is_not_copied_through_again(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator
) -> None:
    """The GPU may be reading it, and there is no event that tells for how long."""
    host = numbers(100 * KIB)
    target, other = OnDevice(host), OnDevice(host)
    with Uploads(stream, allocator=allocator) as uploads:
        fake.fail("cuEventRecord", ILLEGAL_ADDRESS, after=1)  # submitted, but not recorded
        with pytest.raises(bigmem.BigmemError):
            uploads.send([host], [target])
        fake.fail("cuEventRecord", 0, times=0)
        uploads.send([host[::-1].copy()], [other])
        assert allocator.stats().allocations == 2
    fake.finish(stream)
    assert np.array_equal(other.array, host[::-1])
    assert np.array_equal(target.array, host)


def test_what_is_pinned(fake: _core.FakeCuda, allocator: PinnedAllocator) -> None:
    """And what only seems to be, as a copy may then not be made directly."""
    array = bigmem.zeros((64, 4096), np.uint8, allocator=allocator)
    assert is_pinned(array, 0)
    assert is_pinned(array[1:-1], 0)
    assert not is_pinned(array, 1)
    assert not is_pinned(array[:, ::2], 0)
    assert not is_pinned(numbers(4096), 0)
    with bigmem.ArenaAllocator() as ordinary:
        assert not is_pinned(bigmem.zeros(4096, np.uint8, allocator=ordinary), 0)
    beyond = np.lib.stride_tricks.as_strided(array, (65, 4096))
    assert not is_pinned(beyond, 0)
    # Nothing was recorded by asking: it still waits for all that the GPU has to do.
    fake.submit(fake.stream(blocking=False))
    del array, beyond
    assert not allocator.flush(0.05)


def test_no_more_is_under_way_than_there_are_slots(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator
) -> None:
    host = numbers(16 * MIB)
    target = OnDevice(host)
    thread = threading.Thread(
        target=upload,
        args=([host], [target], stream),
        kwargs={"allocator": allocator, "chunk": MIB},
    )
    thread.start()
    wait_for(lambda: fake.calls("cuMemcpyHtoDAsync") == 3 * 2)
    done = 0
    while thread.is_alive():
        assert fake.calls("cuMemcpyHtoDAsync") - done <= 3 * 2
        fake.finish(stream, 1)
        done += 1
        thread.join(0.01)
    fake.finish(stream)
    assert np.array_equal(target.array, host)


@pytest.fixture
def _context(fake: _core.FakeCuda) -> Iterator[None]:
    """The second device's context is current on this thread."""
    functions = _core.FakeCuda(devices=2).functions()
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    context = ctypes.c_void_p()
    assert call(functions["cuDevicePrimaryCtxRetain"])(ctypes.addressof(context), 1) == 0
    assert call(functions["cuCtxPushCurrent"])(context, 0) == 0
    yield
    assert call(functions["cuCtxPopCurrent"])(ctypes.addressof(context), 0) == 0


@pytest.mark.usefixtures("_context")
@pytest.mark.parametrize("handle", [0, 1])
def test_the_legacy_stream_is_that_of_the_current_context(
    fake: _core.FakeCuda, allocator: PinnedAllocator, handle: int
) -> None:
    """Also for other threads; each has slots for a third of the work only."""
    host = numbers(24 * 64 * KIB)
    target = OnDevice(host)
    upload([host], [target], handle, 8, allocator=allocator, chunk="64KiB")
    assert not target.array.any()
    fake.finish(1)
    assert np.array_equal(target.array, host)


@pytest.mark.usefixtures("_context")
def test_the_per_thread_stream_is_that_of_the_calling_thread(
    fake: _core.FakeCuda, allocator: PinnedAllocator
) -> None:
    """No other can submit to it, so the slots of one thread are all that is filled."""
    submitted: list[int] = []
    over = threading.Event()

    def watch() -> None:
        wait_for(lambda: fake.calls("cuMemcpyHtoDAsync") >= 4)
        time.sleep(0.1)
        submitted.append(fake.calls("cuMemcpyHtoDAsync"))
        while not over.wait(0.0005):
            fake.finish()

    thread = threading.Thread(target=watch)
    thread.start()
    host = numbers(MIB)
    target = OnDevice(host)
    upload([host], [target], 2, 4, allocator=allocator, chunk="64KiB")
    over.set()
    thread.join()
    fake.finish(2)
    assert submitted == [4]
    assert np.array_equal(target.array, host)


def test_the_next_block_is_filled_while_the_gpu_copies(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator
) -> None:
    """With two blocks, the third piece is read once one copy is done, though not the other."""
    seen: list[int] = []

    def pieces() -> Iterator[Array]:
        for number in range(3):
            seen.append(number)
            yield numbers(MIB, number)

    targets = [OnDevice(numbers(MIB)) for _ in range(3)]
    thread = threading.Thread(
        target=upload, args=(pieces(), targets, stream), kwargs={"allocator": allocator}
    )
    thread.start()
    wait_for(lambda: len(seen) == 3)
    thread.join(0.2)
    assert thread.is_alive(), "a block was filled again under a copy"
    fake.finish(stream, 1)
    thread.join(10)
    assert not thread.is_alive()
    fake.finish(stream)
    assert all(
        np.array_equal(target.array, numbers(MIB, number)) for number, target in enumerate(targets)
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data.tobytes(),
        lambda data: bytearray(data),
        lambda data: memoryview(data),
        lambda data: array.array("B", data.tobytes()),
        lambda data: data.view("M8[ns]"),
        lambda data: data.reshape(4, -1).view(np.complex64),
        lambda data: np.array(data[:8].view(np.float64)[0]),
        lambda data: data[:0].reshape(0, 3),
        lambda data: b"",
    ],
)
def test_whatever_has_a_buffer_is_taken(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator, make: Callable[[Array], Any]
) -> None:
    host = make(numbers(64 * KIB))
    raw = host.tobytes() if isinstance(host, np.ndarray) else bytes(host)
    target = np.zeros(len(raw), np.uint8)
    upload([host], [(target.ctypes.data, len(raw))], stream, allocator=allocator)
    fake.finish(stream)
    assert target.tobytes() == raw


def test_memory_maps_and_tensors(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator, tmp_path: Any
) -> None:
    numbers(MIB).tofile(tmp_path / "data")
    mapped = np.memmap(tmp_path / "data", np.float32, "r", shape=(512, 512))
    target = Tensor(mapped)
    upload([mapped], [target], stream, allocator=allocator)
    fake.finish(stream)
    assert target.array.tobytes() == mapped.tobytes()


def test_a_stream_that_records_a_graph_is_refused_before_anything_is_in_it(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator
) -> None:
    fake.begin_capture(stream)
    before = fake.calls("cuMemcpyHtoDAsync")
    with pytest.raises(bigmem.BigmemError, match="graph"):
        upload([numbers(8)], [OnDevice(numbers(8))], stream, allocator=allocator)
    assert fake.calls("cuMemcpyHtoDAsync") == before
    assert fake.end_capture(stream)


def test_a_capture_of_another_stream_goes_on(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator
) -> None:
    host = numbers(MIB)
    target = OnDevice(host)
    other = fake.stream(blocking=False)
    fake.begin_capture(other)
    with capturing():
        upload([host], [target], stream, 8, allocator=allocator, chunk="64KiB")
    assert fake.end_capture(other)
    fake.finish(stream)
    assert np.array_equal(target.array, host)


def test_without_an_allocator_there_is_one_a_device(
    fake: _core.FakeCuda, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default, "_made", {})
    host = numbers(8)
    upload([host], [target := OnDevice(host)], stream)
    fake.finish(stream)
    assert np.array_equal(target.array, host)
    first = default.default_allocator()
    assert default.default_allocator(0) is first
    assert first.stats().allocations == 1
    first.close()
    second = default.default_allocator()
    assert second is not first
    second.close()


class DefaultStream:
    """As PyTorch shows that of the second device."""

    cuda_stream = 0
    device_index = 1


def test_a_default_stream_is_of_the_device_that_it_tells(
    fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default, "_made", {})
    two = _core.FakeCuda(devices=2)
    for device in (0, 1):
        two.activate(device)
    cuda = driver.loaded().driver
    assert cuda.enter(0)
    try:
        host = numbers(8)
        upload([host], [target := OnDevice(host)], DefaultStream())
        two.finish(1)  # the same stream, of the first device
        assert not target.array.any()
        assert cuda.enter(1)
        two.finish(1)
        cuda.leave()
        assert np.array_equal(target.array, host)
    finally:
        cuda.leave()
    ((device, allocator),) = default._made.items()
    assert device == allocator.device == 1
    assert allocator.flush(10)
    allocator.close()
    wait_for(lambda: two.memory() == 0)  # before there is one device again


@pytest.mark.usefixtures("_context")
def test_what_another_thread_sent_to_its_stream_is_waited_for(
    fake: _core.FakeCuda, allocator: PinnedAllocator
) -> None:
    """The per-thread stream of the thread that closes is not the one that was used."""
    host = numbers(MIB)
    target = OnDevice(host)
    uploads = Uploads(2, allocator=allocator)
    cuda = driver.loaded().driver

    def send() -> None:
        assert cuda.enter(1)
        uploads.send([host], [target])
        cuda.leave()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(send).result()
        uploads.close()
        assert not allocator.flush(0.05)
        fake.finish()
        assert allocator.flush(10)
    assert np.array_equal(target.array, host)


def test_the_one_of_the_streams_device_is_taken(
    fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another device may not reach its memory, whichever is current."""
    monkeypatch.setattr(default, "_made", {})
    two = _core.FakeCuda(devices=2)
    two.activate(1)
    host = numbers(8)
    upload([host], [target := OnDevice(host)], two.stream(device=1))
    two.finish()
    assert np.array_equal(target.array, host)
    ((device, allocator),) = default._made.items()
    assert device == allocator.device == 1
    assert allocator.flush(10)
    allocator.close()
    wait_for(lambda: two.memory() == 0)  # before there is one device again
