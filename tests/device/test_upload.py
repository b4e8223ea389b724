"""Copies of host arrays to a device, by a stand-in for CuPy over a driver without a GPU."""

import ctypes
import importlib

import numpy as np
import pytest
from cupy_stand_in import OnDevice, stand_in_for_cupy

import bigmem
from bigmem import _core
from bigmem.cuda import PinnedAllocator, driver
from prover.backends.cuda import device as device_module
from prover.backends.cuda import staging
from prover.backends.cuda.device import Device

PIECE = 700 << 10
OUT_OF_MEMORY, ILLEGAL_ADDRESS, NOT_SUPPORTED = 2, 700, 801


@pytest.fixture
def fake(fake, monkeypatch):
    # Two pieces of what the tests copy, for which there are slots before the GPU does anything.
    monkeypatch.setattr(device_module, "_PIECE_BYTES", PIECE)
    return fake


@pytest.fixture
def device(fake, told):
    device = Device(notify=told.append)
    with device.use():
        yield device
    fake.finish()


@pytest.fixture
def rows():
    return np.random.default_rng(1).integers(1, 256, (40_000, 32), np.uint8)


def test_pinned_memory_is_used_where_there_is_some(fake, device, told, rows):
    out = device.upload(rows)
    fake.finish(device._stream.ptr)
    assert np.array_equal(out, rows)
    assert (device.uploads, told, stand_in_for_cupy.pageable_copies) == ("pinned", [], 0)
    assert fake.calls("cuMemcpyHtoDAsync") == 2


def test_a_part_of_an_array_may_be_copied_to(fake, device, rows):
    out = device.empty((len(rows) + 7, 32))
    out[:] = 0
    assert device.upload(rows[:-1], out[8:]).base is out
    fake.finish()
    assert not out[:8].any()
    assert np.array_equal(out[8:], rows[:-1])


@pytest.mark.parametrize("shape", [(0, 32), (1, 32), (1,), (3, 5, 32)])
def test_any_shape(fake, device, shape):
    host = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape)
    out = device.upload(host)
    fake.finish()
    assert (out.shape, out.dtype) == (host.shape, host.dtype)
    assert np.array_equal(out, host)


@pytest.mark.parametrize("lacking", [False, True])
def test_each_piece_is_dropped_once_it_was_read(fake, told, rows, lacking):
    """It may change at once, whenever the GPU comes to copy it."""
    if lacking:
        _core.FakeCuda(host_vmm=False)
    expected, dropped = rows.copy(), []

    def drop(piece):
        dropped.append((piece.ctypes.data - rows.ctypes.data, len(piece)))
        piece[:] = 0

    device = Device(notify=told.append)
    with device.use():
        out = device.upload(rows, drop=drop)
    fake.finish()
    assert np.array_equal(out, expected)
    a_piece = PIECE // 32
    starts = range(0, len(rows), a_piece)
    assert dropped == [(32 * start, min(a_piece, len(rows) - start)) for start in starts]


def test_copies_keep_to_the_stream(fake, device, rows):
    """What is uploaded ahead does not wait for what the device's own stream has to do."""
    fake.submit(device._stream.ptr)
    before = device.upload(rows)
    with device.ahead():
        after = device.upload(rows)
    fake.finish(device._copies.ptr)
    assert np.array_equal(after, rows)
    assert not np.array_equal(before, rows)
    fake.finish(device._stream.ptr)
    assert np.array_equal(before, rows)


def test_a_proof_copies_through_the_same_memory_from_beginning_to_end(fake, rows):
    """Whatever it copies, nothing is pinned, given back or wiped meanwhile, nor in the next."""
    device = Device()
    allocator = device._staging._allocator
    created = []
    for number in range(1, 6):
        with device.use():
            for _ in range(4):
                device.upload(rows)
                fake.finish()
            for _ in range(4):
                with device.ahead():
                    device.upload(rows)
                fake.finish()
            stats = allocator.stats()
            assert stats.allocations == 2 * number  # one for each stream
            assert (stats.live, stats.releases) == (2 * 2 * (1 << 20), 2 * (number - 1))
        assert allocator.stats().live == 0
        assert allocator.flush(10)
        created.append(fake.calls("cuMemCreate"))
    assert len(set(created)) == 1
    # Of two streams of this proof and of the last one: two chunks for each of twelve threads.
    chunk = importlib.import_module("bigmem.cuda.upload")._CHUNK
    assert 2 * 2 * 12 * 2 * chunk <= staging.PINNED_BYTES


def test_one_proof_after_another_gives_no_pinned_memory_back(fake, rows, monkeypatch):
    """Although what the last one has copied through is still to be wiped when the next begins."""
    block = 2 << 20
    monkeypatch.setattr(staging, "PINNED_BYTES", 4 * block)
    device = Device()
    allocator = device._staging._allocator
    for _ in range(2):
        with device.use():
            device.upload(rows)
            with device.ahead():
                device.upload(rows)
    assert allocator.stats().pending == 4 * block  # as the GPU has not even read it
    assert allocator.stats().reclaimed == 0
    fake.finish()


def test_what_is_pinned_is_copied_as_it_is(fake, device, rows, told):
    """The GPU reads it later, so that it may be dropped when that has happened and not before."""
    with PinnedAllocator() as allocator:
        host = bigmem.empty(rows.shape, np.uint8, allocator=allocator)
        host[:] = rows
        dropped = []

        def drop(piece):
            dropped.append(len(piece))
            piece[:] = 0

        out = device.upload(host, drop=drop)
        assert np.array_equal(out, rows)
        assert sum(dropped) == len(rows)
        assert len(dropped) == 2
        del host
    assert fake.calls("cuMemcpyHtoDAsync") == 0
    assert device._staging._allocator.stats().allocations == 0
    assert (stand_in_for_cupy.pageable_copies, told) == (0, [])


def test_what_is_pinned_is_free_as_soon_as_it_was_copied(fake, device, rows):
    """Whatever else the GPU has to do when it is released."""
    with PinnedAllocator() as allocator:
        host = bigmem.empty(rows.shape, np.uint8, allocator=allocator)
        host[:] = rows
        address = host.ctypes.data
        device.upload(host)
        device.was_read(host, rows)  # what is not pinned is nothing to tell
        fake.submit(device._stream.ptr)
        del host
        again = bigmem.empty(rows.shape, np.uint8, allocator=allocator)
        assert again.ctypes.data == address
        del again
        fake.finish()


def test_what_is_pinned_waits_for_copies_of_others(fake, device, rows):
    """A library's user need not record his own copies of an array that is uploaded here, too."""
    others = fake.stream(blocking=False)
    with PinnedAllocator() as allocator:
        host = bigmem.empty(rows.shape, np.uint8, allocator=allocator)
        host[:] = rows
        address = host.ctypes.data
        fake.submit(others)
        device.upload(host)
        del host
        again = bigmem.empty(rows.shape, np.uint8, allocator=allocator)
        assert again.ctypes.data != address
        fake.finish()
        del again


def test_no_event_is_needed_for_what_is_pinned(fake, device, rows):
    """Its memory then waits for all that the GPU does."""
    with PinnedAllocator() as allocator:
        host = bigmem.empty(rows.shape, np.uint8, allocator=allocator)
        host[:] = rows
        address = host.ctypes.data
        out = device.upload(host)
        fake.fail("cuEventRecord", OUT_OF_MEMORY)
        device.was_read(host)
        assert np.array_equal(out, rows)
        fake.submit(device._stream.ptr)
        del host
        again = bigmem.empty(rows.shape, np.uint8, allocator=allocator)
        assert again.ctypes.data != address
        fake.finish()
        del again


def test_an_interrupted_upload_has_been_read(fake, device, rows, monkeypatch):
    """Its memory may be reused when it is released, if its own work was recorded before."""
    with PinnedAllocator() as allocator:
        host = bigmem.empty(rows.shape, np.uint8, allocator=allocator)
        calls = []

        def copy(target, source, original=OnDevice.set):
            calls.append(source)
            if len(calls) == 2:
                raise KeyboardInterrupt
            original(target, source)

        monkeypatch.setattr(OnDevice, "set", copy)
        with pytest.raises(KeyboardInterrupt):
            device.upload(host)
        assert device._stream.copies == []
        calls.clear()
        del host


def test_blocks_that_are_not_pinned_are_staged(fake, device, rows):
    with bigmem.ArenaAllocator() as allocator:
        host = bigmem.empty(rows.shape, np.uint8, allocator=allocator)
        host[:] = rows
        out = device.upload(host)
        fake.finish()
        assert np.array_equal(out, rows)
        del host
    assert fake.calls("cuMemcpyHtoDAsync") == 2


def test_witnesses_are_wiped_when_the_gpu_has_read_them(fake, rows, monkeypatch):
    blocks = []

    def allocate(self, *given, original=PinnedAllocator.allocate, **options):
        block = original(self, *given, **options)
        blocks.append((block.address, block.nbytes))
        return block

    monkeypatch.setattr(PinnedAllocator, "allocate", allocate)
    device = Device()
    with device.use():
        out = device.upload(rows)
    ((address, nbytes),) = blocks
    allocator = device._staging._allocator
    assert not allocator.flush(0.05)
    assert any(ctypes.string_at(address, nbytes)), "wiped before it was copied"
    fake.finish()
    assert allocator.flush(10)
    again = allocator.allocate(nbytes)
    assert (again.address, again.nbytes) == (address, nbytes)
    assert not any(memoryview(again))
    assert np.array_equal(out, rows)


def test_a_proof_that_fails_leaves_no_witness_either(fake, rows):
    device = Device()

    def fail():
        with device.use():
            device.upload(rows)
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    fake.finish()
    allocator = device._staging._allocator
    assert allocator.flush(10)
    assert allocator.stats().live == 0
    assert not any(memoryview(allocator.allocate(1 << 20)))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda fake: _core.FakeCuda(host_vmm=False), "vmm: Operation not supported"),
        (lambda fake: fake.fail("cuMemCreate", OUT_OF_MEMORY), "cuMemCreate: CUDA_ERROR_OUT_OF_"),
        (lambda fake: fake.fail("cuCtxRecordEvent", NOT_SUPPORTED), "could never be reused"),
    ],
)
def test_without_pinned_memory_copies_are_pageable(fake, told, rows, spoil, why):
    spoil(fake)
    device = Device(notify=told.append)
    assert device.uploads.startswith("pageable: ")
    assert why in device.uploads
    (line,) = told
    assert line.startswith("copies to GPU 0 take six times as long, from pageable memory: ")
    assert why in line
    with device.use():
        out = device.upload(rows)
    assert np.array_equal(out, rows)
    assert fake.calls("cuMemcpyHtoDAsync") == 0
    assert stand_in_for_cupy.pageable_copies == 2


def test_without_the_package_copies_are_pageable(fake, told, rows, monkeypatch):
    def addresses():
        raise bigmem.BigmemError("pinned memory needs the package cuda-bindings")

    monkeypatch.setattr(driver, "_addresses", addresses)
    device = Device()
    assert device.uploads == "pageable: pinned memory needs the package cuda-bindings"


@pytest.mark.parametrize(
    ("function", "result", "after"),
    [
        ("cuMemCreate", OUT_OF_MEMORY, 0),
        ("cuMemcpyHtoDAsync", ILLEGAL_ADDRESS, 0),
        ("cuMemcpyHtoDAsync", ILLEGAL_ADDRESS, 1),
    ],
)
def test_a_refusal_in_the_midst_loses_nothing(fake, device, told, rows, function, result, after):
    """Whatever has been copied is copied again, and pinned memory is not asked for any more."""
    fake.fail(function, result, after=after)
    dropped = []
    out = device.upload(rows, drop=lambda piece: dropped.append(len(piece)))
    fake.finish()
    assert np.array_equal(out, rows)
    assert sum(dropped[-2:]) == len(rows)
    assert stand_in_for_cupy.pageable_copies == 2
    assert device.uploads.startswith("pageable: ")
    fake.fail(function, 0, times=0)
    calls = fake.calls("cuMemcpyHtoDAsync")
    assert np.array_equal(device.upload(rows[::-1].copy()), rows[::-1])
    assert fake.calls("cuMemcpyHtoDAsync") == calls
    assert len(told) == 1
