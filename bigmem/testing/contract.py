"""What every allocator promises, whatever its policy and its pages."""

import ctypes
import gc
import itertools
import random
import resource
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

from .._core import Block
from ..allocator import Allocator, open_allocators
from ..errors import BigmemError, InvalidRelease, OutOfMemory
from ..numpy_hook import use
from ..registry import flush
from .blocks import SIZES, Event, fill, holds


class AllocatorContract:
    """For every allocator: sizes, contents, lifetimes, threads, fences, refusals.

    Needs a fixture called ``allocator``, new for each test; 100 MiB of memory are enough.
    """

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_block_has_the_size_asked_for_and_can_be_written(
        self, allocator: Allocator, nbytes: int
    ) -> None:
        block = allocator.allocate(nbytes)
        assert block.nbytes == len(block) == memoryview(block).nbytes == nbytes
        assert block.allocator is allocator
        assert block.address % 64 == 0
        assert block.address != 0
        fill(block, 171)
        assert holds(block, 171)

    @pytest.mark.parametrize("alignment", [1, 16, 64, 4096, 2 << 20, 64 << 20])
    def test_alignment(self, allocator: Allocator, alignment: int) -> None:
        blocks = [allocator.allocate(nbytes, alignment=alignment) for nbytes in (1, 5000, 3 << 20)]
        assert [block.address % alignment for block in blocks] == [0, 0, 0]

    @pytest.mark.parametrize("alignment", [0, -64, 3, 48, 2 << 30])
    def test_senseless_alignment_is_refused(self, allocator: Allocator, alignment: int) -> None:
        with pytest.raises(BigmemError, match="power of two"):
            allocator.allocate(10, alignment=alignment)

    def test_sizes_as_people_write_them(self, allocator: Allocator) -> None:
        assert allocator.allocate("1.5MiB").nbytes == 3 << 19
        assert allocator.allocate(np.int64(77)).nbytes == 77
        for senseless in (-1, "many", "-4KiB", "3 parsec"):
            with pytest.raises(BigmemError):
                allocator.allocate(senseless)
        with pytest.raises(TypeError):
            allocator.allocate(1.5)  # type: ignore[arg-type]

    @pytest.mark.parametrize("nbytes", [1 << 46, 1 << 60, sys.maxsize, 1 << 70])
    def test_absurd_sizes_are_out_of_memory(self, allocator: Allocator, nbytes: int) -> None:
        with pytest.raises(OutOfMemory) as caught:
            allocator.allocate(nbytes)
        assert isinstance(caught.value, MemoryError)
        assert isinstance(caught.value, BigmemError)
        assert allocator.allocate(100).nbytes == 100

    def test_more_than_the_machine_has_is_out_of_memory(self, allocator: Allocator) -> None:
        # Refused by bigmem itself: a system that overcommits without limit would grant it.
        machine = psutil.virtual_memory().total + psutil.swap_memory().total
        with _little_address_range(), pytest.raises(OutOfMemory, match=str(machine)):
            allocator.allocate(machine + 1)

    def test_blocks_do_not_overlap_and_keep_their_contents(self, allocator: Allocator) -> None:
        rng = random.Random(20)
        blocks: dict[int, Block] = {}
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
    def test_zeroed_is_zero_on_every_path(self, allocator: Allocator, nbytes: int) -> None:
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

    def test_it_serves_numpy(self, allocator: Allocator) -> None:
        with use(allocator, min_bytes=1):
            array = np.arange(100_000.0)
            result = np.concatenate([array * 2 + 1, np.zeros(1000)])
        assert np.array_equal(result[:100_000], np.arange(100_000) * 2 + 1)
        assert not result[100_000:].any()

    def test_release_is_idempotent_and_refused_while_viewed(self, allocator: Allocator) -> None:
        block = allocator.allocate(10_000)
        view = memoryview(block)
        with pytest.raises(InvalidRelease, match="viewed by 1 buffer"):
            block.release()
        view[0] = 9
        assert view[0] == 9
        view.release()
        before = block.released
        block.release()
        assert (before, block.released) == (False, True)
        block.release()
        with pytest.raises(BufferError):
            memoryview(block)
        with pytest.raises(InvalidRelease):
            block.fence(threading.Event())

    def test_an_array_keeps_its_block_and_its_last_view_ends_it(self, allocator: Allocator) -> None:
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

    def test_close_refuses_allocations_and_spares_live_blocks(self, allocator: Allocator) -> None:
        block = allocator.allocate(6 << 20)
        fill(block, 5)
        dead = allocator.allocate(1 << 20)
        fill(dead, 6)
        dead.release()
        allocator.close()
        allocator.close()
        with pytest.raises(BigmemError, match="takes no allocations"):
            allocator.allocate(10)
        assert allocator not in open_allocators()
        assert holds(block, 5)
        block.release()
        assert allocator.flush(20)
        allocator.trim()  # a quarantine counts as live
        assert allocator.stats().live == 0

    def test_release_in_another_thread(self, allocator: Allocator) -> None:
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

        _run_threads(consume)
        assert allocator.flush(20)
        allocator.trim()  # a quarantine counts as live
        assert allocator.stats().live == 0

    def test_threads_side_by_side(self, allocator: Allocator) -> None:
        numbers = itertools.count(1)
        right = []

        def work() -> None:
            number = next(numbers)
            rng = random.Random(number)
            for _ in range(10):
                block = allocator.allocate(rng.choice((100, 5000, 70_000)))
                fill(block, number)
                other = allocator.allocate(4096, zeroed=True)
                right.append(holds(block, number) and holds(other, 0))

        _run_threads(work)
        assert right == [True] * 40

    def test_allocation_and_release_in_destructors_and_the_collector(
        self, allocator: Allocator
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

    def test_a_fenced_block_is_not_reused_before_its_fence(self, allocator: Allocator) -> None:
        event = Event()
        block = allocator.allocate(3 << 20)
        fill(block, 77)
        begin, end = block.address, block.address + block.nbytes
        # Past the buffer, whose export would keep the block from being released.
        seen = np.ctypeslib.as_array((ctypes.c_uint8 * block.nbytes).from_address(begin))
        block.fence(event)
        block.release()
        others = [allocator.allocate(3 << 20) for _ in range(4)]
        for other in others:
            assert other.address + other.nbytes <= begin or other.address >= end
            fill(other, 1)
        allocator.trim()
        assert (seen == 77).all()
        assert allocator.flush(0.02) is False
        event.is_done = True
        assert allocator.flush(20) is True
        assert event.asked > 0

    def test_every_kind_of_event_can_fence(self, allocator: Allocator) -> None:
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

    def test_flush_waits_for_a_fence_that_another_thread_is_just_asking(
        self, allocator: Allocator
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
        asker = threading.Thread(target=flush, args=(0,))
        asker.start()
        assert asked.wait(20)
        assert allocator.flush(0.01) is False
        answer.set()
        asker.join()
        Slow.done = lambda self: True  # type: ignore[method-assign]
        assert allocator.flush(20) is True

    def test_fences_may_allocate_and_release_when_asked(self, allocator: Allocator) -> None:
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


@contextmanager
def _little_address_range() -> Iterator[None]:
    """So that an allocator which refuses nothing fails its test, and not the whole machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + (4 << 30)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _run_threads(work: Callable[[], None]) -> None:
    """Four threads of it; a raising one makes pytest complain."""
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
