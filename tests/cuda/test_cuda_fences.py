"""What released blocks wait for."""

import threading
from typing import Any

import numpy as np
import pytest
from waiting import wait_for

import bigmem
from bigmem import _core
from bigmem.cuda import PinnedAllocator, capturing, driver, record

MIB = 1 << 20
SIZE = 4 * MIB


class Stream:
    """As libraries show theirs."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class ProtocolStream:
    def __init__(self, shown: Any) -> None:
        self.shown = shown

    def __cuda_stream__(self) -> Any:
        return self.shown


class Tensor:
    """As PyTorch shows one."""

    def __init__(self, array: Any, is_cuda: bool = False) -> None:
        self.array, self.is_cuda = array, is_cuda

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def numel(self) -> int:
        return int(self.array.size)


def is_reused(allocator: PinnedAllocator, address: int) -> bool:
    """Whether the next block has that address; it is held for a moment only."""
    block = allocator.allocate(SIZE)
    answer = block.address == address
    driver.loaded().fences.attach(block.address, driver.loaded().fences.past())
    return answer


def released(allocator: PinnedAllocator, stream: Any = None) -> int:
    block = allocator.allocate(SIZE)
    if stream is not None:
        record(block, stream)
    return block.address


def test_a_recorded_block_waits_for_its_stream_alone(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    one, other = fake.stream(blocking=False), fake.stream(blocking=False)
    fake.submit(one)
    fake.submit(other)
    address = released(allocator, one)
    assert not allocator.flush(0.02)
    assert not is_reused(allocator, address)
    fake.finish(one)
    assert allocator.flush(10)
    assert is_reused(allocator, address)


def test_an_unrecorded_block_waits_for_everything(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    streams = [fake.stream(blocking=False), fake.stream(), 0, 2]
    for stream in streams:
        fake.submit(stream)
    address = released(allocator)
    for stream in streams:
        assert not allocator.flush(0.02)
        assert not is_reused(allocator, address)
        fake.finish(stream) if stream else fake.finish(1)
    assert allocator.flush(10)
    assert is_reused(allocator, address)


def test_work_that_comes_later_does_not_matter(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    stream = fake.stream()
    fake.submit(stream)
    address = released(allocator, stream)
    wait_for(lambda: fake.calls("cuEventQuery") > 0)
    fake.submit(stream)
    fake.finish(stream, 1)
    assert allocator.flush(10)
    assert is_reused(allocator, address)


def test_several_fences_must_all_be_done(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    streams = [fake.stream() for _ in range(3)]
    block = allocator.allocate(SIZE)
    for stream in streams:
        fake.submit(stream)
        record(block, stream)
    block.release()
    for stream in streams:
        assert not allocator.flush(0.01)
        fake.finish(stream)
    assert allocator.flush(10)


def test_a_guard_covers_every_device_in_use(
    fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = _core.FakeCuda(devices=3)
    monkeypatch.setattr(driver, "_loaded", None)
    two.activate(2)
    allocator = PinnedAllocator()
    stream = two.stream(device=2)
    two.submit(stream)
    address = released(allocator)
    assert not allocator.flush(0.02)
    two.finish(stream)
    assert allocator.flush(10)
    assert is_reused(allocator, address)


def test_events_are_pooled(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    stream = fake.stream()
    for _ in range(50):
        released(allocator, stream)
        released(allocator)
        assert allocator.flush(10)
    assert fake.calls("cuEventCreate") <= 10


@pytest.mark.parametrize(
    "wrap",
    [
        lambda handle: handle,
        lambda handle: np.uint64(handle),
        lambda handle: Stream(ptr=handle),
        lambda handle: Stream(cuda_stream=handle),
        lambda handle: Stream(__cuda_stream__=(0, handle)),
        lambda handle: ProtocolStream((0, handle)),
    ],
)
def test_streams_of_every_library(fake: _core.FakeCuda, wrap: Any) -> None:
    allocator = PinnedAllocator()
    fake.submit()  # elsewhere
    stream = fake.stream()
    released(allocator, wrap(stream))
    assert allocator.flush(10)
    released(allocator, wrap(0))
    assert not allocator.flush(0.01)


def test_what_is_no_stream(fake: _core.FakeCuda) -> None:
    block = PinnedAllocator().allocate(SIZE)
    wrong = {"stream": "str", 1.5: "float", -1: "-1", 1 << 64: str(1 << 64)}
    for stream, name in wrong.items():
        with pytest.raises(bigmem.BigmemError, match=f"expected a stream, not {name}"):
            record(block, stream)
    for shown in (None, (0,), (0, "x"), (0, None), 5):
        with pytest.raises(bigmem.BigmemError, match="expected a stream, not ProtocolStream"):
            record(block, ProtocolStream(shown))
    with pytest.raises(bigmem.BigmemError, match="cuStreamGetCtx"):
        record(block, 12345)


def test_arrays_are_found_by_address(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    stream = fake.stream()
    array = bigmem.empty((64, 1024), np.float64, allocator=allocator)
    views: list[Any] = [
        array[10:20, ::2],
        array[::-1],
        array.T,
        memoryview(array[3]),
        Tensor(array[5:]),
    ]
    for view in views:
        fake.submit(stream)
        record(view, stream)
    events = fake.calls("cuEventRecord")
    assert events == len(views)
    record(array[:0], stream)
    assert fake.calls("cuEventRecord") == events
    address = array.ctypes.data
    del array, views, view
    assert not is_reused(allocator, address)
    fake.finish()
    assert allocator.flush(10)


def test_blocks_of_other_allocators_wait_too(fake: _core.FakeCuda) -> None:
    allocator = bigmem.ArenaAllocator()
    stream = fake.stream()
    array = bigmem.empty(MIB, np.uint8, allocator=allocator)
    fake.submit(stream)
    record(array[100:], stream)
    del array
    assert not allocator.flush(0.02)
    fake.finish()
    assert allocator.flush(10)
    guarded = bigmem.Guarded(bigmem.ArenaAllocator(), quarantine=0)
    array = bigmem.empty(MIB, np.uint8, allocator=guarded)
    fake.submit(stream)
    record(array, stream)
    del array
    assert not guarded.flush(0.02)
    fake.finish()
    assert guarded.flush(10)


def test_memory_of_nobody(fake: _core.FakeCuda) -> None:
    with pytest.raises(bigmem.BigmemError, match="no living block"):
        record(np.zeros(1000))
    no_arrays = [7, None, "text", [], Stream(__array_interface__={}), Stream(data_ptr=int)]
    for array in no_arrays:
        name = type(array).__name__
        with pytest.raises(bigmem.BigmemError, match=f"takes an array.*, not {name}"):
            record(array)
    gone = PinnedAllocator().allocate(SIZE)
    gone.release()
    with pytest.raises(bigmem.BigmemError, match="no living block"):
        record(gone)
    with pytest.raises(bigmem.BigmemError, match="on the GPU"):
        record(Tensor(np.zeros(10), is_cuda=True))


@pytest.mark.parametrize("kind", ["blocking", "non-blocking"])
def test_a_known_capture_survives_and_blocks_wait(fake: _core.FakeCuda, kind: str) -> None:
    allocator = PinnedAllocator()
    stream = fake.stream(blocking=kind == "blocking")
    with capturing():
        fake.begin_capture(stream)
        released(allocator)
        assert not allocator.flush(0.05)
        allocator.allocate(60 * MIB).release()
        allocator.trim()
        assert fake.end_capture(stream)
    assert allocator.flush(10)


def test_an_unknown_capture_on_a_blocking_stream_survives(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    stream = fake.stream()
    fake.begin_capture(stream)
    released(allocator)
    assert not allocator.flush(0.05)
    assert fake.end_capture(stream)
    assert allocator.flush(10)


def test_recording_on_a_stream_that_captures_is_refused(fake: _core.FakeCuda) -> None:
    block = PinnedAllocator().allocate(SIZE)
    stream = fake.stream(blocking=False)
    fake.begin_capture(stream)
    with pytest.raises(bigmem.BigmemError, match="as long as the graph"):
        record(block, stream)
    assert fake.end_capture(stream)


def test_recorded_blocks_are_free_while_others_capture(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    captured, stream = fake.stream(blocking=False), fake.stream(blocking=False)
    with capturing():
        fake.begin_capture(captured)
        address = released(allocator, stream)
        assert allocator.flush(10)
        assert is_reused(allocator, address)
        assert fake.end_capture(captured)


def test_a_capture_waits_for_a_guard_and_no_longer(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    fake.delay("cuCtxRecordEvent", 0.05)
    recorded = fake.calls("cuCtxRecordEvent")
    released(allocator)
    wait_for(lambda: fake.calls("cuCtxRecordEvent") > recorded)
    stream = fake.stream(blocking=False)
    with capturing():  # not while the event is being recorded
        fake.begin_capture(stream)
        assert fake.end_capture(stream)
    assert allocator.flush(10)


def test_copies_in_flight_are_never_overwritten(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    cuda = driver.loaded()
    streams = [fake.stream(), fake.stream(blocking=False)]
    targets = np.zeros((60, MIB), np.uint8)
    ended = threading.Event()

    def gpu() -> None:
        while not ended.is_set():
            for stream in streams:
                fake.finish(stream, 1)

    thread = threading.Thread(target=gpu)
    thread.start()
    try:
        for number, target in enumerate(targets):
            source = bigmem.full(MIB, number + 1, np.uint8, allocator=allocator)
            stream = streams[number % 2]
            cuda.driver.copy_to_device(target.ctypes.data, source.ctypes.data, MIB, stream)
            if number % 3:
                record(source, stream)
            del source
    finally:
        ended.set()
        thread.join()
    fake.finish()
    assert (targets == np.arange(1, 61, dtype=np.uint8)[:, None]).all()
    assert allocator.stats().warm_hits > 0


@pytest.mark.parametrize("handle", [0, 1, 2])
@pytest.mark.parametrize("name", ["device_index", "device_id"])
def test_a_default_stream_is_of_the_device_that_it_tells(
    fake: _core.FakeCuda, handle: int, name: str
) -> None:
    """Its handle is the same everywhere; this thread may use another device."""
    fake = _core.FakeCuda(devices=2)
    for device in (0, 1):
        fake.activate(device)
    cuda = driver.loaded().driver
    allocator = PinnedAllocator(1)
    assert cuda.enter(0)
    try:
        block = allocator.allocate(SIZE)
        assert cuda.enter(1)
        fake.submit(handle)
        cuda.leave()
        record(block, Stream(cuda_stream=handle, **{name: 1}))
        block.release()
        assert not allocator.flush(0.05)
        assert cuda.enter(1)
        fake.finish(handle)
        cuda.leave()
        assert allocator.flush(10)
    finally:
        cuda.leave()


def test_a_default_stream_of_no_device_is_that_which_is_used(fake: _core.FakeCuda) -> None:
    """CuPy's, whose device is -1; and a device without a context runs nothing."""
    fake = _core.FakeCuda(devices=2)
    fake.activate(0)
    allocator = PinnedAllocator(0)
    cuda = driver.loaded().driver
    assert not cuda.enter(1)
    assert cuda.enter(0)
    try:
        for device in (-1, 1):
            fake.submit(0)
            block = allocator.allocate(SIZE)
            record(block, Stream(ptr=0, device_id=device))
            block.release()
            assert not allocator.flush(0.02)
            fake.finish(0)
            assert allocator.flush(10)
    finally:
        cuda.leave()


def test_a_default_stream_without_a_context_may_be_any_devices(fake: _core.FakeCuda) -> None:
    """A thread that has used no device yet: CUDA would take the first, and we recorded another."""
    fake = _core.FakeCuda(devices=2)
    fake.activate(0)
    fake.activate(1)
    allocator = PinnedAllocator(0)
    block = allocator.allocate(SIZE)
    record(block, fake.stream(1))
    block.release()
    assert allocator.flush(10)
    block = allocator.allocate(SIZE)
    address = block.address
    fake.submit(0)
    thread = threading.Thread(target=record, args=(block, None))
    thread.start()
    thread.join()
    block.release()
    assert not allocator.flush(0.1)
    assert allocator.allocate(SIZE).address != address
    fake.finish(0)
    assert allocator.flush(10)


def test_an_allocation_is_not_blamed_on_what_failed_before(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator(budget=bigmem.Budget("16MiB"))
    block = allocator.allocate("8MiB")
    fake.fail("cuMemUnmap", 1, times=1)
    block.release()
    assert allocator.flush(10)
    allocator.trim()
    with pytest.raises(bigmem.OutOfMemory) as caught:
        allocator.allocate("64MiB")
    assert "cuMemUnmap" not in str(caught.value)


@pytest.mark.parametrize("result", [800, 2], ids=["not permitted", "out of memory"])
@pytest.mark.parametrize(
    "function",
    [
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDevicePrimaryCtxGetState",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent",
        "cuEventCreate",
        "cuCtxRecordEvent",
    ],
)
def test_a_device_of_which_the_driver_does_not_tell_may_be_at_work(
    fake: _core.FakeCuda, function: str, result: int
) -> None:
    """As in a callback of the driver's, which refuses most calls."""
    allocator = PinnedAllocator()
    held = allocator.allocate(SIZE)  # no event of a former guard is there to be used again
    fake.submit(fake.stream())
    fake.fail(function, result)
    address = held.address
    held.release()
    assert not allocator.flush(0.03)
    assert not is_reused(allocator, address)
    fake.fail(function, 0, times=0)
    assert not allocator.flush(0.03)
    fake.finish()
    assert allocator.flush(10)
