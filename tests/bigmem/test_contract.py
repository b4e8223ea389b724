"""What every allocator promises, whatever its policy and its pages."""

import gc
import itertools
import random
import sys
import threading
import weakref

import numpy as np
import psutil
import pytest
from waiting import wait_for

import bigmem
from bigmem.native import NativeAllocator
from bigmem.wrappers import Wrapper

SIZES = [0, 1, 63, 4096, 4097, 100_000, (2 << 20) - 1, 2 << 20, (5 << 20) + 13, 9 << 20]


def fill(block: bigmem.Block, value: int) -> None:
    np.frombuffer(memoryview(block), np.uint8)[:] = value


def holds(block: bigmem.Block, value: int) -> bool:
    if block.nbytes == 0:
        return True
    return bool((np.frombuffer(memoryview(block), np.uint8) == value).all())


@pytest.mark.parametrize("nbytes", SIZES)
def test_block_has_the_size_asked_for_and_can_be_written(
    allocator: bigmem.Allocator, nbytes: int
) -> None:
    block = allocator.allocate(nbytes)
    assert block.nbytes == len(block) == memoryview(block).nbytes == nbytes
    assert block.allocator is allocator
    assert block.address % 64 == 0
    assert block.address != 0
    fill(block, 171)
    assert holds(block, 171)


@pytest.mark.parametrize("alignment", [1, 16, 64, 4096, 2 << 20, 64 << 20])
def test_alignment(allocator: bigmem.Allocator, alignment: int) -> None:
    blocks = [allocator.allocate(nbytes, alignment=alignment) for nbytes in (1, 5000, 3 << 20)]
    assert [block.address % alignment for block in blocks] == [0, 0, 0]


@pytest.mark.parametrize("alignment", [0, -64, 3, 48, 2 << 30])
def test_senseless_alignment_is_refused(allocator: bigmem.Allocator, alignment: int) -> None:
    with pytest.raises(bigmem.BigmemError, match="power of two"):
        allocator.allocate(10, alignment=alignment)


def test_sizes_as_people_write_them(allocator: bigmem.Allocator) -> None:
    assert allocator.allocate("1.5MiB").nbytes == 3 << 19
    assert allocator.allocate(np.int64(77)).nbytes == 77
    for senseless in (-1, "many", "-4KiB", "3 parsec"):
        with pytest.raises(bigmem.BigmemError):
            allocator.allocate(senseless)
    with pytest.raises(TypeError):
        allocator.allocate(1.5)  # type: ignore[arg-type]


def test_a_gibibyte_costs_nothing_before_it_is_touched(native_allocator: NativeAllocator) -> None:
    before = bigmem.osmem.resident_bytes()
    block = native_allocator.allocate(1 << 30, zeroed=True)
    assert bigmem.osmem.resident_bytes() - before < 64 << 20
    del block


@pytest.mark.parametrize("nbytes", [1 << 46, 1 << 60, sys.maxsize, 1 << 70])
def test_absurd_sizes_are_out_of_memory(allocator: bigmem.Allocator, nbytes: int) -> None:
    with pytest.raises(bigmem.OutOfMemory) as caught:
        allocator.allocate(nbytes)
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, bigmem.BigmemError)
    assert allocator.allocate(100).nbytes == 100


def test_more_than_the_machine_has_is_out_of_memory(allocator: bigmem.Allocator) -> None:
    # Refused by bigmem itself: a system that overcommits without limit would grant it.
    machine = psutil.virtual_memory().total + psutil.swap_memory().total
    with pytest.raises(bigmem.OutOfMemory, match=str(machine)):
        allocator.allocate(machine + 1)


def test_blocks_do_not_overlap_and_keep_their_contents(allocator: bigmem.Allocator) -> None:
    rng = random.Random(20)
    blocks: dict[int, bigmem.Block] = {}
    for step in range(300):
        if blocks and rng.random() < 0.45:
            key = rng.choice(list(blocks))
            assert holds(blocks[key], key)
            del blocks[key]
            continue
        zeroed = rng.random() < 0.3
        block = allocator.allocate(rng.choice(SIZES[:7]), zeroed=zeroed)
        if zeroed:
            assert holds(block, 0)
        key = step % 255 + 1
        if key in blocks:
            continue
        fill(block, key)
        blocks[key] = block
        if step % 50 == 49:
            allocator.trim() if step % 100 == 99 else allocator.flush(10)
    ranges = sorted((b.address, b.address + max(1, b.nbytes)) for b in blocks.values())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
    assert all(holds(block, key) for key, block in blocks.items())


@pytest.mark.parametrize("nbytes", [4096, 300_000, 4 << 20, 9 << 20])
def test_zeroed_is_zero_on_every_path(allocator: bigmem.Allocator, nbytes: int) -> None:
    for between in ("nothing", "flush", "nothing", "trim", "wait", "nothing"):
        block = allocator.allocate(nbytes, zeroed=True)
        assert holds(block, 0)
        fill(block, 255)
        block.release()
        if between == "flush":
            assert allocator.flush(20)
        elif between == "trim":
            allocator.trim()
        elif between == "wait":
            threading.Event().wait(0.02)
        # A smaller block may get part of what was just given up.
        part = allocator.allocate(nbytes // 2, zeroed=True)
        assert holds(part, 0)
        fill(part, 254)


def test_release_is_idempotent_and_refused_while_viewed(allocator: bigmem.Allocator) -> None:
    block = allocator.allocate(10_000)
    view = memoryview(block)
    with pytest.raises(bigmem.InvalidRelease, match="viewed by 1 buffer"):
        block.release()
    view[0] = 9
    assert view[0] == 9
    view.release()
    assert not block.released
    block.release()
    assert block.released
    block.release()
    with pytest.raises(BufferError):
        memoryview(block)
    with pytest.raises(bigmem.InvalidRelease):
        block.fence(threading.Event())


def test_an_array_keeps_its_block_and_its_last_view_ends_it(allocator: bigmem.Allocator) -> None:
    block = allocator.allocate(80_000)
    gone = weakref.ref(block)
    array = np.frombuffer(memoryview(block), np.float64)
    del block
    part = array[10:20]
    del array
    part[:] = 1.0
    assert gone() is not None
    del part
    assert gone() is None


def test_flush_leaves_nothing_pending(native_allocator: NativeAllocator) -> None:
    blocks = [native_allocator.allocate(size) for size in SIZES for _ in range(3)]
    for block in blocks:
        fill(block, 1)
    del block, blocks
    assert native_allocator.flush(30) is True
    stats = native_allocator.stats()
    assert (stats.live, stats.pending) == (0, 0)
    assert stats.allocations == stats.releases == 3 * len(SIZES)
    # Where memory is short, what is warm by now may be on its way back.
    wait_for(lambda: native_allocator.stats().reclaiming == 0)


def test_trim_gives_every_idle_byte_back(native_allocator: NativeAllocator) -> None:
    before = bigmem.osmem.resident_bytes()
    kept = native_allocator.allocate(2 << 20)  # leaves nothing of a unit
    fill(kept, 7)
    blocks = [native_allocator.allocate(size) for size in (48 << 20, 11 << 20, 300_000)]
    for block in blocks:
        fill(block, 1)
    del block, blocks
    native_allocator.trim()
    stats = native_allocator.stats()
    assert stats.pending == stats.reclaiming == stats.warm == stats.lazy == 0
    assert stats.live >= kept.nbytes
    assert stats.reclaimed >= 59 << 20
    assert bigmem.osmem.resident_bytes() - before < 16 << 20
    assert holds(kept, 7)
    assert native_allocator.trim() == 0


def test_stats_count_what_happened(allocator: bigmem.Allocator) -> None:
    if isinstance(allocator, Wrapper):
        assert allocator.stats() == allocator.upstream.stats()
        return
    if not isinstance(allocator, NativeAllocator | bigmem.SystemAllocator):
        assert allocator.stats() == bigmem.AllocatorStats()
        return
    blocks = [allocator.allocate(8 << 20) for _ in range(3)]
    stats = allocator.stats()
    assert stats.live == stats.peak_live == 24 << 20
    assert (stats.allocations, stats.releases) == (3, 0)
    assert stats.allocate_seconds > 0
    blocks.clear()
    allocator.flush(30)
    allocator.trim()
    stats = allocator.stats()
    assert stats.live == 0
    assert stats.peak_live == 24 << 20
    assert stats.peak_resident >= 24 << 20
    assert stats.reclaimed == 24 << 20
    assert stats.releases == 3
    assert stats.release_seconds > 0
    assert stats.resident == 0


def test_close_refuses_allocations_and_spares_live_blocks(allocator: bigmem.Allocator) -> None:
    block = allocator.allocate(6 << 20)
    fill(block, 5)
    dead = allocator.allocate(1 << 20)
    fill(dead, 6)
    dead.release()
    allocator.close()
    allocator.close()
    with pytest.raises(bigmem.BigmemError, match="takes no allocations"):
        allocator.allocate(10)
    assert allocator not in bigmem.allocator.open_allocators()
    assert holds(block, 5)
    block.release()
    assert allocator.flush(20)
    allocator.trim()  # a quarantine counts as live
    assert allocator.stats().live == 0


def test_blocks_outlive_their_allocator() -> None:
    for release in (bigmem.Inline(), bigmem.Deferred(), bigmem.Recycle()):
        block = bigmem.ArenaAllocator(release=release).allocate(3 << 20)
        gc.collect()
        fill(block, 3)
        assert holds(block, 3)


def test_release_in_another_thread(allocator: bigmem.Allocator) -> None:
    blocks = [allocator.allocate(200_000) for _ in range(64)]
    for block in blocks:
        fill(block, 1)
    del block

    def consume() -> None:
        while True:
            try:
                blocks.pop().release()
            except IndexError:
                return

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allocator.flush(20)
    allocator.trim()  # a quarantine counts as live
    assert allocator.stats().live == 0


def test_allocation_and_release_in_destructors_and_the_collector(
    allocator: bigmem.Allocator,
) -> None:
    freed = []

    class Owner:
        def __init__(self) -> None:
            self.block = allocator.allocate(50_000)
            self.cycle = self

        def __del__(self) -> None:
            replacement = allocator.allocate(60_000, zeroed=True)
            freed.append(holds(replacement, 0))

    for _ in range(50):
        Owner()
    gc.collect()
    assert freed == [True] * 50
    assert allocator.flush(20)


def test_a_block_and_its_allocator_in_a_cycle_are_collected() -> None:
    allocator = bigmem.ArenaAllocator()
    allocator.keeps = allocator.allocate(100)  # type: ignore[attr-defined]
    gone = weakref.ref(allocator)
    del allocator
    gc.collect()
    assert gone() is None


class Event:
    """A fence whose time a test decides."""

    def __init__(self) -> None:
        self.is_done = False
        self.asked = 0

    def done(self) -> bool:
        self.asked += 1
        return self.is_done


def test_a_fenced_block_is_not_reused_before_its_fence(allocator: bigmem.Allocator) -> None:
    event = Event()
    block = allocator.allocate(3 << 20)
    fill(block, 77)
    begin, end = block.address, block.address + block.nbytes
    seen = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * block.nbytes).from_address(begin))
    block.fence(event)
    block.release()
    others = [allocator.allocate(3 << 20) for _ in range(4)]
    for other in others:
        assert other.address + other.nbytes <= begin or other.address >= end
        fill(other, 1)
    allocator.trim()
    assert (seen == 77).all()
    if isinstance(allocator, NativeAllocator):
        assert allocator.flush(0.02) is False
        assert allocator.stats().pending >= 3 << 20
    event.is_done = True
    assert allocator.flush(20) is True
    assert event.asked > 0
    del other, others
    allocator.flush(20)
    assert allocator.stats().pending == 0


def test_every_kind_of_event_can_fence(allocator: bigmem.Allocator) -> None:
    class WithProperty:
        done = True

    class WithQuery:
        def query(self) -> bool:
            return True

    block = allocator.allocate(1000)
    block.fence(WithProperty())
    block.fence(WithQuery())
    block.release()
    assert allocator.flush(10)
    assert allocator.stats().pending == 0
    with pytest.raises(TypeError, match="done or query"):
        allocator.allocate(10).fence(object())


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


def test_flush_waits_for_a_fence_that_another_thread_is_just_asking(
    allocator: bigmem.Allocator,
) -> None:
    asked, answer = threading.Event(), threading.Event()

    class Slow:
        first = True

        def done(self) -> bool:
            if self.first:  # the release asks once by itself
                self.first = False
                return False
            asked.set()
            answer.wait(20)
            return False

    block = allocator.allocate(10_000)
    block.fence(Slow())
    block.release()
    asker = threading.Thread(target=bigmem.flush, args=(0,))
    asker.start()
    assert asked.wait(20)
    assert allocator.flush(0.01) is False
    answer.set()
    asker.join()
    Slow.done = lambda self: True  # type: ignore[method-assign]
    assert allocator.flush(20) is True


def test_alignment_below_a_pointers_is_served(allocator: bigmem.Allocator) -> None:
    blocks = [allocator.allocate(size, alignment=1) for size in (0, 1, 3, 5)]
    if not isinstance(allocator, NativeAllocator | bigmem.SystemAllocator):
        return
    # What the core keeps before a block is itself aligned.
    assert [block.address % 8 for block in blocks] == [0] * 4


def test_fences_may_allocate_and_release_when_asked(allocator: bigmem.Allocator) -> None:
    depths, deepest = [0], [0]

    class Allocating:
        asked = 0

        def done(self) -> bool:
            depths[0] += 1
            deepest[0] = max(deepest[0], depths[0])
            allocator.allocate(5000).release()
            depths[0] -= 1
            self.asked += 1
            return self.asked > 2

    blocks = [allocator.allocate(5000) for _ in range(20)]
    for block in blocks:
        block.fence(Allocating())
        block.release()
    assert allocator.flush(20)
    # A release asks once, and the allocation within that looks through the others.
    assert deepest[0] <= 2
