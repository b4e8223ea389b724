"""CuPy's pinned memory from bigmem: with CuPy where it is installed, and with a stand-in."""

import contextlib
import gc
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bigmem
from bigmem import _core
from bigmem.cuda import PinnedAllocator, default, install_cupy, uninstall_cupy

KIB, MIB = 1 << 10, 1 << 20


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class PinnedMemory:
    def __init__(self, size: int) -> None:
        self.size = size
        self.data = np.empty(size, np.uint8)
        self.ptr = self.data.ctypes.data


class Pooled(PinnedMemory):
    def __init__(self, size: int, pool: "Pool") -> None:
        super().__init__(size)
        self.pool = lambda: pool


class Pointer:
    def __init__(self, mem: Any, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset

    def size(self) -> int:
        return int(self.mem.size)


class Pool:
    def __init__(self) -> None:
        self.served = 0

    def malloc(self, size: int) -> Pointer:
        self.served += 1
        return Pointer(Pooled(size, self), 0)


def stand_in() -> Any:
    """The part of CuPy that deals with pinned memory."""
    cupy: Any = ModuleType("cupy")
    pool = Pool()
    current: list[Callable[[int], Any]] = [pool.malloc]

    def set_allocator(allocator: Callable[[int], Any] | None = None) -> None:
        current[0] = allocator or (lambda size: Pointer(PinnedMemory(size), 0))

    cupy.get_default_pinned_memory_pool = lambda: pool
    cupy.cuda = SimpleNamespace(
        runtime=SimpleNamespace(CUDARuntimeError=CUDARuntimeError, getDevice=lambda: 0),
        PinnedMemoryPointer=Pointer,
        PinnedMemory=PinnedMemory,
        PinnedMemoryPool=Pool,
        pinned_memory=SimpleNamespace(PooledPinnedMemory=Pooled),
        set_pinned_memory_allocator=set_allocator,
        alloc_pinned_memory=lambda size: current[0](size),
    )
    return cupy


KINDS = ["stand-in"] + (["cupy"] if importlib.util.find_spec("cupy") else [])


@pytest.fixture(params=KINDS)
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "cupy":
        module: Any = importlib.import_module("cupy")
    else:
        module = stand_in()
        monkeypatch.setitem(sys.modules, "cupy", module)
    yield module
    uninstall_cupy()
    module.cuda.set_pinned_memory_allocator(module.get_default_pinned_memory_pool().malloc)


@pytest.fixture
def allocator(fake: _core.FakeCuda) -> Iterator[PinnedAllocator]:
    with PinnedAllocator() as made:
        yield made


def test_pinned_memory_is_ours_and_lives_as_long_as_cupy_needs_it(
    cupy: Any, fake: _core.FakeCuda, allocator: PinnedAllocator
) -> None:
    install_cupy(allocator)
    pointer = cupy.cuda.alloc_pinned_memory(100 * KIB)
    assert pointer.size() == 100 * KIB
    assert allocator.stats().live == 100 * KIB
    memory = pointer.mem
    del pointer
    gc.collect()
    assert allocator.stats().live == 100 * KIB
    del memory
    assert allocator.stats().live == 0
    assert allocator.flush(10)


def test_nothing_is_asked_of_us_for_nothing(cupy: Any, allocator: PinnedAllocator) -> None:
    install_cupy(allocator)
    pointer = cupy.cuda.alloc_pinned_memory(0)
    assert (pointer.ptr, pointer.size()) == (0, 0)
    assert allocator.stats().allocations == 0


def test_released_blocks_wait_for_the_whole_device(
    cupy: Any, fake: _core.FakeCuda, allocator: PinnedAllocator
) -> None:
    """CuPy submits copies that nobody records."""
    install_cupy(allocator)
    stream = fake.stream(blocking=False)
    pointer = cupy.cuda.alloc_pinned_memory(2 * MIB)
    address = pointer.ptr
    fake.submit(stream)
    del pointer
    assert cupy.cuda.alloc_pinned_memory(2 * MIB).ptr != address
    assert not allocator.flush(0.05)
    fake.finish(stream)
    assert allocator.flush(10)


def test_no_memory_is_cupys_own_error(
    cupy: Any, fake: _core.FakeCuda, allocator: PinnedAllocator
) -> None:
    """So that it goes on with copies from ordinary memory."""
    install_cupy(allocator)
    fake.fail("cuMemCreate", 2)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as caught:
        cupy.cuda.alloc_pinned_memory(64 * MIB)
    assert caught.value.status == 2
    assert isinstance(caught.value.__cause__, bigmem.OutOfMemory)


def test_installing_replaces_and_uninstalling_restores(
    cupy: Any, fake: _core.FakeCuda, allocator: PinnedAllocator
) -> None:
    with PinnedAllocator() as other:
        install_cupy(allocator)
        install_cupy(other)
        cupy.cuda.alloc_pinned_memory(1)
        assert (allocator.stats().allocations, other.stats().allocations) == (0, 1)
        uninstall_cupy()
        uninstall_cupy()
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):  # without a GPU
            cupy.cuda.alloc_pinned_memory(1)
        assert other.stats().allocations == 1


def test_the_pool_that_was_there_comes_back(allocator: PinnedAllocator, cupy: Any) -> None:
    if cupy.cuda.PinnedMemoryPool is Pool:
        pool = Pool()
    else:

        def below(size: int) -> Any:
            return cupy.cuda.PinnedMemoryPointer(PinnedMemory(size), 0)

        pool = cupy.cuda.PinnedMemoryPool(below)
    cupy.cuda.set_pinned_memory_allocator(pool.malloc)
    install_cupy(allocator)
    uninstall_cupy()
    memory = cupy.cuda.alloc_pinned_memory(1).mem
    assert memory.pool() is pool


def test_the_pool_comes_back_though_two_threads_installed_at_once(
    allocator: PinnedAllocator, fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = stand_in()
    monkeypatch.setitem(sys.modules, "cupy", module)
    pool = Pool()
    module.cuda.set_pinned_memory_allocator(pool.malloc)
    default_pool = module.get_default_pinned_memory_pool

    def default_pool_late() -> Any:
        module.get_default_pinned_memory_pool = default_pool
        install_cupy(allocator)  # as another thread may, while this one looks at what is there
        return default_pool()

    module.get_default_pinned_memory_pool = default_pool_late
    install_cupy(allocator)
    uninstall_cupy()
    assert module.cuda.alloc_pinned_memory(1).mem.pool() is pool


def test_no_pool_comes_back_too(
    allocator: PinnedAllocator, fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = stand_in()
    monkeypatch.setitem(sys.modules, "cupy", module)
    module.cuda.set_pinned_memory_allocator(None)
    install_cupy(allocator)
    uninstall_cupy()
    assert type(module.cuda.alloc_pinned_memory(1).mem) is PinnedMemory


def test_each_device_has_its_own_without_a_choice(
    fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    _core.FakeCuda(devices=2)
    monkeypatch.setattr(default, "_made", {})
    module = stand_in()
    monkeypatch.setitem(sys.modules, "cupy", module)
    device = 0
    module.cuda.runtime.getDevice = lambda: device
    install_cupy()
    held = [module.cuda.alloc_pinned_memory(MIB)]
    device = 1
    held.append(module.cuda.alloc_pinned_memory(MIB))
    uninstall_cupy()
    made = default._made
    assert {number: each.device for number, each in made.items()} == {0: 0, 1: 1}
    assert [each.stats().live for each in made.values()] == [MIB, MIB]
    held.clear()
    for each in made.values():
        each.close()


def test_what_is_missing_is_told(
    fake: _core.FakeCuda,
    allocator: PinnedAllocator,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with pytest.raises(bigmem.BigmemError, match="PinnedAllocator"):
        install_cupy(bigmem.ArenaAllocator())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(bigmem.BigmemError, match="CuPy cannot be imported"):
        install_cupy(allocator)
    (tmp_path / "cupy.py").write_text('raise PermissionError(13, "Permission denied", "/.cupy")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy")
    with pytest.raises(bigmem.BigmemError, match=r"CuPy cannot be imported \(.*'/\.cupy'"):
        install_cupy(allocator)
    uninstall_cupy()
