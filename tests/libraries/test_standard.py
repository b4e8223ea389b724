"""What needs nothing but Python and NumPy: views, copies, files, and memory that is not ours."""

import array
import copy
import ctypes
import gc
import hashlib
import io
import mmap
import multiprocessing
import struct
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest

import bigmem

InUse = Callable[[], int]
COUNT = 50_000


def numbers(allocator: bigmem.Allocator) -> np.ndarray:
    made = bigmem.empty(COUNT, allocator=allocator)
    made[:] = np.arange(COUNT)
    return made


@pytest.fixture
def untouched() -> Iterator[None]:
    """The test must neither allocate from any allocator of the process nor release to one."""
    gc.collect()
    before = bigmem.stats()
    yield
    gc.collect()
    after = bigmem.stats()
    assert (after.allocations, after.releases) == (before.allocations, before.releases)


def test_a_memoryview_keeps_the_block(allocator: bigmem.Allocator, in_use: InUse) -> None:
    ones = bigmem.ones((50, 60), allocator=allocator)
    view = memoryview(ones)
    assert (view.shape, view.strides, view.format) == ((50, 60), (480, 8), "d")
    del ones
    part = view[10:20]
    view.release()
    assert in_use() == 1
    assert part[3, 4] == 1.0
    part.release()
    del view, part
    assert in_use() == 0


def test_a_block_is_a_buffer_like_any_other(allocator: bigmem.Allocator, tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    file = tmp_path / "content"
    file.write_bytes(content)
    block = allocator.allocate(len(content))
    with file.open("rb") as source:
        assert source.readinto(block) == len(content)
    assert bytes(block) == content
    assert hashlib.sha256(block).digest() == hashlib.sha256(content).digest()
    assert zlib.crc32(block) == zlib.crc32(content)
    struct.pack_into("<q", block, 8, -5)
    assert struct.unpack_from("<q", block, 8) == (-5,)
    foreign = ctypes.c_int64.from_buffer(block, 8)
    assert (ctypes.addressof(foreign), foreign.value) == (block.address + 8, -5)
    with pytest.raises(bigmem.InvalidRelease):
        block.release()
    del foreign
    block.release()


def test_an_array_made_over_a_block_keeps_it(allocator: bigmem.Allocator, in_use: InUse) -> None:
    """Though NumPy gives the buffer itself back at once, so that release() would not be refused."""
    over = np.ndarray(1000, buffer=allocator.allocate(8000))
    assert in_use() == 1
    over[:] = 3
    bigmem.trim()
    assert over.sum() == 3000
    del over
    assert in_use() == 0


def test_copies_are_numpys_own_and_hold_nothing(allocator: bigmem.Allocator, in_use: InUse) -> None:
    ours = numbers(allocator)
    copies = [copy.copy(ours), copy.deepcopy(ours), ours.copy(), copy.deepcopy([ours])[0]]
    addresses = {ours.ctypes.data, *(each.ctypes.data for each in copies)}
    assert len(addresses) == 5
    ours[:] = 0
    assert in_use() == 1
    assert all((each == np.arange(COUNT)).all() for each in copies)


def test_blocks_are_not_copied(allocator: bigmem.Allocator) -> None:
    block = allocator.allocate(1000)
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot pickle 'bigmem\.Block'"):
            duplicate(block)


def test_save_and_load(allocator: bigmem.Allocator, in_use: InUse, tmp_path: Path) -> None:
    ours = numbers(allocator)
    path = tmp_path / "array.npy"
    np.save(path, ours)
    memory = io.BytesIO()
    np.save(memory, ours)
    assert memory.getvalue() == path.read_bytes()
    np.savez(tmp_path / "arrays.npz", ours=ours, twice=ours * 2)
    for mode in (None, "r"):
        assert (np.load(path, mmap_mode=mode) == ours).all()
    with np.load(tmp_path / "arrays.npz") as archive:
        assert (archive["twice"] == 2 * ours).all()
    ours.tofile(tmp_path / "raw")
    again = bigmem.empty(COUNT, allocator=allocator)
    with (tmp_path / "raw").open("rb") as source:
        assert source.readinto(again) == again.nbytes
    assert (again == ours).all()
    assert in_use() == 2


def change(name: str) -> None:
    shared = SharedMemory(name)
    view = np.ndarray(COUNT, buffer=shared.buf)
    view += 1
    del view
    shared.close()


@pytest.mark.usefixtures("untouched")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_shared_memory_is_neither_counted_nor_disturbed() -> None:
    shared = SharedMemory(create=True, size=8 * COUNT)
    try:
        view = np.ndarray(COUNT, buffer=shared.buf)
        view[:] = np.arange(COUNT)
        child = multiprocessing.get_context("fork").Process(target=change, args=(shared.name,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        bigmem.flush()
        bigmem.trim()
        assert (view == np.arange(1, COUNT + 1)).all()
        addresses = {block.address for block in bigmem.live_blocks()}
        assert view.ctypes.data not in addresses
        del view
    finally:
        shared.close()
        shared.unlink()


def test_shared_memory_and_blocks_exchange_data(allocator: bigmem.Allocator, in_use: InUse) -> None:
    ours = numbers(allocator)
    shared = SharedMemory(create=True, size=8 * COUNT)
    try:
        view = np.ndarray(COUNT, buffer=shared.buf)
        view[:] = ours
        ours[:] = 0
        np.add(view, 1, out=ours)
        assert (ours == np.arange(1, COUNT + 1)).all()
        assert in_use() == 1
        del view
    finally:
        shared.close()
        shared.unlink()


def test_under_the_hook_memory_of_others_is_not_served(
    allocator: bigmem.Allocator, in_use: InUse, tmp_path: Path
) -> None:
    shared = SharedMemory(create=True, size=8 * COUNT)
    bigmem.install(allocator, min_bytes=1)
    try:
        views = [
            np.ndarray(COUNT, buffer=shared.buf),
            np.memmap(tmp_path / "mapped", "f8", "w+", shape=COUNT),
            np.frombuffer(bytearray(8 * COUNT)),
            np.asarray(memoryview(array.array("d", bytes(8 * COUNT)))),
        ]
        for view in views:
            view[:] = 2
        assert in_use() == 0
        copies = [view.copy() for view in views]
        assert in_use() == len(copies)
    finally:
        bigmem.uninstall()
        views.clear()
        shared.close()
        shared.unlink()
    assert all((each == 2).all() for each in copies)
    copies.clear()
    assert in_use() == 0


@pytest.mark.usefixtures("untouched")
def test_mappings_of_others_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    mapped = np.memmap(path, "f8", "w+", shape=COUNT)
    mapped[:] = np.arange(COUNT)
    bigmem.trim()
    mapped.flush()
    with mmap.mmap(-1, 8 * COUNT) as anonymous:
        view = np.frombuffer(anonymous)
        view[:] = mapped
        bigmem.flush()
        bigmem.trim()
        assert (view == np.arange(COUNT)).all()
        del view
    assert (np.fromfile(path) == np.arange(COUNT)).all()


def files_and_copies() -> list[np.ndarray]:
    first = np.linspace(0, 1, COUNT).reshape(100, -1)
    file = io.BytesIO()
    np.savez_compressed(file, first=first, second=np.asfortranarray(first))
    file.seek(0)
    with np.load(file) as archive:
        loaded = [archive["first"], archive["second"]]
    text = io.StringIO()
    np.savetxt(text, first[:20])
    read = np.loadtxt(io.StringIO(text.getvalue()))
    return [*loaded, read, copy.deepcopy(first), np.fromiter(range(COUNT), np.int64)]


def test_results_are_the_same_under_the_hook(
    same_under_hook: Callable[[Callable[[], list[np.ndarray]]], None],
) -> None:
    same_under_hook(files_and_copies)
