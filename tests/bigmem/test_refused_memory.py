"""An allocation that the system refuses waits for what is on its way back, and for nothing else."""

import errno
import threading
from collections.abc import Callable

import pytest
from waiting import wait_for

import bigmem
from bigmem import _core
from bigmem.native import NativeAllocator

Relenting = Callable[[_core.ProbedPages, str], threading.Thread]
MIB = 1 << 20


def arena(
    table: _core.ProbedPages,
    release: bigmem.Inline | bigmem.Deferred | bigmem.Recycle,
    reserve: int,
    mapping_per_block: bool = False,
) -> NativeAllocator:
    return NativeAllocator(
        pages=bigmem.AnonymousPages(huge="never"),
        release=release,
        reserve=reserve,
        mapping_per_block=mapping_per_block,
        budget=None,
        reclaim=None,
        name=None,
        table=table,
        fences=None,
    )


@pytest.fixture
def relenting() -> Relenting:
    """The system refuses something from now on, and relents in the middle of its second attempt."""

    def start(table: _core.ProbedPages, operation: str) -> threading.Thread:
        before = table.calls(operation)[0]

        def relent() -> None:
            wait_for(lambda: table.calls(operation)[0] > before + 1)
            table.refuse(operation, 0)

        table.refuse(operation, errno.ENOMEM)
        thread = threading.Thread(target=relent)
        thread.start()
        return thread

    return start


@pytest.mark.parametrize(
    ("operation", "mapping_per_block"), [("reserve", True), ("reserve", False), ("commit", False)]
)
def test_what_comes_back_during_an_attempt_is_not_missed(
    relenting: Relenting, operation: str, mapping_per_block: bool
) -> None:
    table = _core.ProbedPages(operation == "commit")
    allocator = arena(table, bigmem.Deferred(), 128 * MIB, mapping_per_block)
    block = allocator.allocate(100 * MIB)
    table.delay("decommit", 0.05)
    table.delay(operation, 0.5)
    relents = relenting(table, operation)
    block.release()
    assert allocator.allocate(150 * MIB).nbytes == 150 * MIB
    relents.join()


def test_what_a_moved_block_leaves_is_waited_for(relenting: Relenting) -> None:
    table = _core.ProbedPages()
    allocator = arena(table, bigmem.Inline(), 64 * MIB)
    block = allocator.allocate(16 * MIB)
    table.delay("unreserve", 1)
    moves = threading.Thread(target=_core.resize_block, args=(block, 128 * MIB))
    moves.start()
    wait_for(lambda: table.calls("unreserve")[0] == 1)
    relents = relenting(table, "reserve")
    assert allocator.allocate(40 * MIB).nbytes == 40 * MIB
    relents.join()
    moves.join()


@pytest.mark.parametrize("release", [bigmem.Inline(), bigmem.Deferred(), bigmem.Recycle(decay=0)])
def test_what_others_release_all_the_time_is_not_waited_for(
    release: bigmem.Inline | bigmem.Deferred | bigmem.Recycle,
) -> None:
    table = _core.ProbedPages()
    allocator = arena(table, release, 64 * MIB)
    kept = allocator.allocate(MIB)
    table.refuse("reserve", errno.ENOMEM)
    table.delay("reserve", 0.05)
    ends, refused = threading.Event(), threading.Event()

    def use() -> None:
        while not ends.wait(0.005):
            allocator.allocate(MIB).release()

    def ask() -> None:
        with pytest.raises(bigmem.OutOfMemory):
            allocator.allocate(256 * MIB)
        refused.set()

    threads = [threading.Thread(target=use), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    told = refused.wait(30)
    ends.set()  # which ends a wait that would not end, too
    for thread in threads:
        thread.join()
    assert told
    kept.release()


def test_what_was_never_had_does_not_count() -> None:
    table = _core.ProbedPages(True)
    allocator = arena(table, bigmem.Deferred(), 0)
    table.refuse("commit", errno.ENOMEM)
    with pytest.raises(bigmem.OutOfMemory):
        allocator.allocate(8 * MIB)
    stats = allocator.stats()
    assert stats.peak_live == stats.peak_resident == 0
    table.refuse("commit", 0)
    block = allocator.allocate(8 * MIB)
    table.refuse("commit", errno.ENOMEM)
    assert not _core.resize_block(block, 16 * MIB)
    stats = allocator.stats()
    assert stats.reclaimed == 0
    assert stats.live == stats.peak_live == stats.peak_resident == 8 * MIB
    table.refuse("commit", 0)
    assert _core.resize_block(block, 16 * MIB)
    assert allocator.stats().peak_live == 16 * MIB
