"""Uploads that fail, are refused or are interrupted: nothing is lost, left or overwritten."""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from waiting import wait_for

import bigmem
from bigmem import _core
from bigmem.cuda import PinnedAllocator, upload

from .gpu_memory import (
    ILLEGAL_ADDRESS,
    KIB,
    MIB,
    Array,
    OnDevice,
    Tensor,
    numbers,
    threads_of_this_process,
)

HOST = np.ones((4, 6))


@pytest.mark.parametrize(
    ("hosts", "targets", "what"),
    [
        ([HOST], [OnDevice(HOST[:3])], "192 bytes and its device buffer 144 bytes"),
        ([HOST, HOST], [OnDevice(HOST)], "only 1 device buffers"),
        ([HOST], [OnDevice(HOST), OnDevice(HOST)], "only 1 host arrays"),
        ([HOST[:, ::2]], [OnDevice(HOST[:, :3])], "host array is not C-contiguous"),
        ([HOST.T], [OnDevice(HOST)], "host array is not C-contiguous"),
        ([memoryview(b"abcdef")[::2]], [(0, 3)], "host buffer is not C-contiguous"),
        ([HOST.astype(object)], [OnDevice(HOST)], "holds references"),
        ([HOST.tolist()], [OnDevice(HOST)], "list has no buffer"),
        ([HOST], [HOST], "ndarray is no memory of a GPU"),
        ([HOST], [OnDevice(HOST, read_only=True)], "read-only"),
        ([HOST], [OnDevice(np.asfortranarray(HOST))], "device is not C-contiguous"),
        ([HOST], [Tensor(HOST, contiguous=False)], "not contiguous"),
        ([HOST], [(1,)], r"a device buffer is \(address, bytes\), not \(1,\)"),
        ([HOST], [("a", "b")], r"a device buffer is \(address, bytes\)"),
    ],
)
def test_what_does_not_fit_is_told(
    stream: int, allocator: PinnedAllocator, hosts: list[Any], targets: list[Any], what: str
) -> None:
    if isinstance(targets[0], OnDevice) and not targets[0].array.flags.c_contiguous:
        targets[0].interface["strides"] = targets[0].array.strides
    with pytest.raises(bigmem.BigmemError, match=what):
        upload(hosts, targets, stream, allocator=allocator)


def test_senseless_numbers_are_refused(stream: int, allocator: PinnedAllocator) -> None:
    for depth in (0, -1, 2.5, "2"):
        with pytest.raises(bigmem.BigmemError, match="whole numbers from 1"):
            upload([], [], stream, depth, allocator=allocator)  # type: ignore[arg-type]
    with pytest.raises(bigmem.BigmemError, match="whole numbers from 1"):
        upload([], [], stream, chunk=0, allocator=allocator)
    for address in (-8, 1 << 64):
        with pytest.raises(bigmem.BigmemError, match=f"no memory at the address {address}"):
            upload([b"data"], [(address, 4)], stream, allocator=allocator)
    with pytest.raises(bigmem.BigmemError, match="takes several arrays, as a list, not 5"):
        upload(5, [], stream, allocator=allocator)  # type: ignore[arg-type]
    with pytest.raises(bigmem.BigmemError, match="takes several arrays, as a list, not 5"):
        upload([], 5, stream, allocator=allocator)  # type: ignore[arg-type]
    with pytest.raises(bigmem.BigmemError, match="PinnedAllocator"):
        upload([], [], stream, allocator=bigmem.ArenaAllocator())  # type: ignore[arg-type]


def test_an_iterable_that_fails_leaks_nothing(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator
) -> None:
    def hosts() -> Iterator[Array]:
        yield numbers(MIB)
        raise OSError("no more")

    target = OnDevice(numbers(MIB))
    with pytest.raises(OSError, match="no more"):
        upload(hosts(), [target, target], stream, allocator=allocator)
    assert allocator.stats().live == 0
    fake.finish(stream)
    assert np.array_equal(target.array, numbers(MIB))


@pytest.mark.parametrize("function", ["cuMemcpyHtoDAsync", "cuEventRecord", "cuMemCreate"])
@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_refusal_of_the_driver_leaks_nothing(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator, function: str, after: int
) -> None:
    host = numbers(48 * MIB)
    targets = [OnDevice(host)]
    fake.fail(function, ILLEGAL_ADDRESS, after=after)
    with pytest.raises((bigmem.BigmemError, bigmem.OutOfMemory), match="ILLEGAL_ADDRESS"):
        upload([host], targets, stream, 4, allocator=allocator, chunk="4MiB")
    fake.fail(function, ILLEGAL_ADDRESS, times=0)
    assert allocator.stats().live == 0


@pytest.mark.parametrize("after", range(1, 8))
def test_what_was_submitted_before_a_refusal_arrives(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator, after: int
) -> None:
    """Its memory is not reused before that, whichever event could not be recorded."""
    host = np.full(2 * MIB, 7, np.uint8)
    target = OnDevice(host)
    fake.fail("cuEventRecord", ILLEGAL_ADDRESS, after=after)
    with pytest.raises(bigmem.BigmemError, match="ILLEGAL_ADDRESS"):
        upload([host], [target], stream, 8, allocator=allocator, chunk="64KiB")
    fake.fail("cuEventRecord", ILLEGAL_ADDRESS, times=0)
    submitted = fake.calls("cuMemcpyHtoDAsync")
    assert submitted >= after
    bigmem.empty(4 * MIB, np.uint8, allocator=allocator)[:] = 9
    fake.finish(stream)
    assert np.count_nonzero(target.array == 7) == submitted * 64 * KIB
    assert np.count_nonzero(target.array == 9) == 0


@pytest.mark.parametrize("hosts", [1, 3])
def test_an_interrupt_ends_it_while_the_gpu_is_busy(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator, hosts: int
) -> None:
    """Ctrl-C, while every thread waits for a slot: nothing more is submitted, no thread is left."""
    host = numbers(16 * MIB)
    target = OnDevice(host)

    def interrupt() -> None:
        wait_for(lambda: fake.calls("cuMemcpyHtoDAsync") == 3 * 2)
        signal.raise_signal(signal.SIGINT)

    allocator.allocate(1).release()  # the reclaim worker runs from here on
    before = threads_of_this_process()
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        upload([host] * hosts, [target] * hosts, stream, allocator=allocator, chunk=MIB)
    thread.join()
    wait_for(lambda: threads_of_this_process() <= before)
    assert allocator.stats().live == 0
    fake.finish(stream)
    assert fake.calls("cuMemcpyHtoDAsync") == 3 * 2
    assert np.count_nonzero(target.array == host) >= 6 * MIB


def test_a_later_signal_does_not_get_between_an_interrupt_and_the_program(
    fake: _core.FakeCuda, stream: int, allocator: PinnedAllocator
) -> None:
    """It arrives while other threads are in the midst of their last copies."""
    host = numbers(16 * MIB)
    target = OnDevice(host)
    later: list[int] = []

    def interrupt(*_: object) -> None:
        fake.delay("cuMemcpyHtoDAsync", 0.5)
        before = fake.calls("cuMemcpyHtoDAsync")
        fake.finish(stream)
        wait_for(lambda: fake.calls("cuMemcpyHtoDAsync") > before)
        threading.Timer(0.1, signal.raise_signal, [signal.SIGUSR1]).start()
        raise KeyboardInterrupt

    def begin() -> None:
        wait_for(lambda: fake.calls("cuMemcpyHtoDAsync") == 3 * 2)
        signal.raise_signal(signal.SIGINT)

    handlers = {signal.SIGINT: interrupt, signal.SIGUSR1: lambda *_: later.append(1)}
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    thread = threading.Thread(target=begin)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            upload([host], [target], stream, allocator=allocator, chunk=MIB)
        wait_for(lambda: later == [1])
    finally:
        thread.join()
        for number, handler in former.items():
            signal.signal(number, handler)
