"""The list of what is in use."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

import bigmem

Run = Callable[..., str]


@pytest.fixture
def name() -> Iterator[str]:
    """Tells the blocks of one test from all others of the process."""
    gc.collect()
    yield f"test-{time.monotonic_ns()}"
    gc.collect()


def of(name: str) -> list[bigmem.LiveBlock]:
    return [block for block in bigmem.live_blocks() if name in block.allocator]


def test_blocks_in_use_are_listed_the_largest_first(name: str) -> None:
    start = time.monotonic()
    arena = bigmem.ArenaAllocator(name=name)
    small = arena.allocate(1000)
    large = arena.allocate("3MiB")
    array = bigmem.zeros(500, allocator=arena)
    found = of(name)
    assert [block.nbytes for block in found] == [3 << 20, 4000, 1000]
    assert [block.address for block in found] == [large.address, array.ctypes.data, small.address]
    assert {block.allocator for block in found} == {name}
    assert all(0 <= block.age <= time.monotonic() - start for block in found)
    assert found[2].age >= found[0].age  # made earlier
    del array
    small.release()
    assert [block.nbytes for block in of(name)] == [3 << 20]
    del large
    assert of(name) == []


def test_only_the_outermost_block_is_listed(name: str) -> None:
    arena = bigmem.ArenaAllocator(name=name)
    inner = arena.allocate(10_000)
    outer = bigmem.Block(memoryview(memoryview(inner)[10:])[10:5000], allocator=arena)
    assert [block.address for block in of(name)] == [outer.address] == [inner.address + 20]
    second = bigmem.Block(inner, allocator=arena)
    outer.release()
    assert [block.address for block in of(name)] == [second.address]
    del second
    assert [block.nbytes for block in of(name)] == [10_000]


def test_wrapped_blocks_are_listed_once_and_quarantined_ones_never(name: str) -> None:
    arena = bigmem.ArenaAllocator(name=name)
    wrapper = bigmem.Traced(bigmem.Guarded(bigmem.Limited(arena, "1GiB")))
    blocks = [wrapper.allocate(1000 * k) for k in range(1, 6)]
    found = of(name)
    assert [block.nbytes for block in found] == [5000, 4000, 3000, 2000, 1000]
    assert {block.allocator for block in found} == {wrapper.name}
    del blocks[2:]
    assert [block.nbytes for block in of(name)] == [2000, 1000]
    assert arena.stats().live > 10_000


def test_a_block_that_waits_for_its_fence_is_not_in_use(name: str) -> None:
    limited = bigmem.Limited(bigmem.ArenaAllocator(name=name), "1GiB")
    done = threading.Event()

    class Fence:
        def done(self) -> bool:
            return done.is_set()

    block = limited.allocate(1000)
    block.fence(Fence())
    block.release()
    assert of(name) == []
    done.set()
    assert limited.flush(10)
    assert of(name) == []


def test_where_is_what_the_wrapper_noted(name: str) -> None:
    arena = bigmem.ArenaAllocator(name=name)

    def make(allocator: bigmem.Allocator) -> object:
        return bigmem.empty(100, allocator=allocator)

    line = make.__code__.co_firstlineno + 1
    kept = [make(bigmem.Traced(arena, where=True)), make(bigmem.Guarded(arena))]
    assert [block.where for block in of(name)] == [f"{__file__}:{line}"] * 2
    kept = [make(bigmem.Traced(arena)), make(arena)]
    assert [block.where for block in of(name)] == [None] * 2
    del kept


def test_where_is_what_tracemalloc_saw(run_python: Run) -> None:
    out = run_python(
        """
        import tracemalloc
        import bigmem
        arena = bigmem.ArenaAllocator()
        untraced = arena.allocate(30)
        tracemalloc.start(8)
        def make():
            return bigmem.empty(20, "u1", allocator=arena)
        array = make()
        block = arena.allocate(10)
        for found in bigmem.live_blocks():
            print(found.nbytes, found.where)
        """
    )
    assert out.splitlines() == ["30 None", "20 <string>:8", "10 <string>:10"]


def test_a_line_for_people(name: str) -> None:
    block = bigmem.LiveBlock(3 << 20, 1.26, "recycle", 0, "file.py:12")
    assert str(block) == "3 MiB from recycle, 1.3 s old, made at file.py:12"
    assert str(bigmem.LiveBlock(10, 0.0, "x", 0, None)) == "10 bytes from x, 0.0 s old"


def test_the_list_may_change_while_it_is_made(name: str) -> None:
    arena = bigmem.ArenaAllocator(name=name)
    stop = threading.Event()

    class Cycle:
        def __init__(self) -> None:
            self.block, self.cycle = arena.allocate(10), self

    def churn() -> None:
        while not stop.is_set():
            Cycle()
            held = [arena.allocate(100) for _ in range(20)]
            del held

    kept = [arena.allocate(5000) for _ in range(10)]
    threads = [threading.Thread(target=churn) for _ in range(3)]
    threshold = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(200):
            found = [block for block in of(name) if block.nbytes == 5000]
            assert {b.address for b in found} == {b.address for b in kept}
            assert len(found) == 10
    finally:
        stop.set()
        gc.set_threshold(*threshold)
        for thread in threads:
            thread.join()
    gc.collect()
    assert len(of(name)) == 10


def test_a_dying_block_is_not_handed_out(name: str) -> None:
    arena = bigmem.ArenaAllocator(name=name)
    seen = []
    block = bigmem.Block(
        arena.allocate(100), allocator=arena, on_release=lambda: seen.append(len(of(name)))
    )
    gone = weakref.ref(block, lambda _: seen.append(len(of(name))))
    del block
    assert seen == [0, 0]
    assert gone() is None


def test_a_child_of_fork_has_the_list(run_python: Run) -> None:
    run_python(
        """
        import os, bigmem
        arena = bigmem.SystemAllocator()  # no threads: newer Pythons warn of forks beside them
        blocks = [arena.allocate(10 * k) for k in range(1, 6)]
        if (child := os.fork()) == 0:
            good = [b.nbytes for b in bigmem.live_blocks()] == [50, 40, 30, 20, 10]
            del blocks[:4]
            more = arena.allocate(7)
            good &= [b.nbytes for b in bigmem.live_blocks()] == [50, 7]
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(bigmem.live_blocks()) == 5
        """
    )


def test_wrappers_pass_on_where_a_block_was_made() -> None:
    arena = bigmem.ArenaAllocator()
    inside = bigmem.Traced(arena, where=True)
    for outside in (bigmem.Limited(inside, "1GiB"), bigmem.Traced(inside)):
        block = outside.allocate(123_457)
        (found,) = [live for live in bigmem.live_blocks() if live.address == block.address]
        assert found.where is not None
        assert "test_live.py:" in found.where
        block.release()
