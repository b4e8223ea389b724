"""What every allocator promises, whatever its policy and its pages."""

import gc
import sys
import weakref

import pytest

import bigmem
from bigmem.native import NativeAllocator
from bigmem.testing import AccountingContract, AllocatorContract, PoolContract
from bigmem.testing.blocks import fill, holds
from bigmem.wrappers import Wrapper


class TestEveryAllocator(AllocatorContract):
    pass


class TestCounting(AccountingContract):
    @pytest.fixture
    def allocator(self, counting_allocator: bigmem.Allocator) -> bigmem.Allocator:
        return counting_allocator


class TestPools(PoolContract):
    @pytest.fixture
    def allocator(self, native_allocator: NativeAllocator) -> NativeAllocator:
        return native_allocator


def test_a_gibibyte_costs_nothing_before_it_is_touched(native_allocator: NativeAllocator) -> None:
    before = bigmem.osmem.resident_bytes()
    block = native_allocator.allocate(1 << 30, zeroed=True)
    assert bigmem.osmem.resident_bytes() - before < 64 << 20
    del block


def test_alignment_below_a_pointers_is_served(counting_allocator: bigmem.Allocator) -> None:
    blocks = [counting_allocator.allocate(size, alignment=1) for size in (0, 1, 3, 5)]
    # What the core keeps before a block is itself aligned.
    assert [block.address % 8 for block in blocks] == [0] * 4


def test_a_wrappers_stats_are_its_upstreams(wrapper: Wrapper) -> None:
    block = wrapper.allocate(8 << 20)
    assert wrapper.stats() == wrapper.upstream.stats()
    del block
    assert wrapper.flush(30)
    assert wrapper.stats() == wrapper.upstream.stats()


def test_blocks_outlive_their_allocator() -> None:
    for release in (bigmem.Inline(), bigmem.Deferred(), bigmem.Recycle()):
        block = bigmem.ArenaAllocator(release=release).allocate(3 << 20)
        gc.collect()
        fill(block, 3)
        assert holds(block, 3)


def test_a_block_and_its_allocator_in_a_cycle_are_collected() -> None:
    allocator = bigmem.ArenaAllocator()
    allocator.keeps = allocator.allocate(100)  # type: ignore[attr-defined]
    gone = weakref.ref(allocator)
    del allocator
    gc.collect()
    assert gone() is None


def test_a_failing_fence_keeps_its_block_and_speaks_up() -> None:
    allocator = bigmem.ArenaAllocator()

    class Broken:
        broken = True

        def done(self) -> bool:
            if self.broken:
                raise RuntimeError("device lost")
            return True

    event = Broken()
    block = allocator.allocate(5000)
    block.fence(event)
    heard: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, heard.append
    try:
        block.release()
    finally:
        sys.unraisablehook = hook
    assert len(heard) == 1
    with pytest.raises(RuntimeError, match="device lost"):
        allocator.flush(5)
    assert allocator.stats().pending == 8192
    event.broken = False
    assert allocator.flush(5)
    assert allocator.stats().pending == 0


def test_a_foreign_buffer_is_kept_until_release() -> None:
    allocator = bigmem.SystemAllocator()
    memory = bytearray(1000)
    block = bigmem.Block(memory, allocator=allocator)
    fill(block, 4)
    assert memory == b"\4" * 1000
    with pytest.raises(BufferError):
        memory.append(1)
    block.release()
    memory.append(1)
    with pytest.raises(BufferError):
        bigmem.Block(b"read only", allocator=allocator)
