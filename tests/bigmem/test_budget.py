"""Limits: they hold at every moment, and idle memory gives way before anything fails."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import bigmem
from bigmem import _core
from bigmem.native import NativeAllocator

Native = Callable[..., NativeAllocator]
MIB = 1 << 20
POLICIES = [bigmem.Inline(), bigmem.Deferred(), bigmem.Recycle(), bigmem.Recycle(advice="free")]


def touched(allocator: bigmem.Allocator, nbytes: int) -> bigmem.Block:
    block = allocator.allocate(nbytes)
    np.frombuffer(memoryview(block), np.uint8)[:] = 1
    return block


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("mapping_per_block", [False, True])
def test_a_loop_larger_than_the_budget_in_all_never_fails(
    native: Native,
    policy: bigmem.Inline | bigmem.Deferred | bigmem.Recycle,
    mapping_per_block: bool,
) -> None:
    if mapping_per_block and isinstance(policy, bigmem.Recycle):
        policy = bigmem.Deferred(advice="free")
    budget = bigmem.Budget(48 * MIB)
    allocator = native(policy, "never", budget=budget, mapping_per_block=mapping_per_block)
    for step in range(30):
        block = touched(allocator, (20 + step % 13) * MIB)
        assert budget.used <= budget.limit
        block.release()
    stats = allocator.stats()
    assert stats.peak_resident <= budget.limit
    allocator.flush(20)
    allocator.trim()
    assert budget.used == 0


def test_over_the_limit_says_who_holds_it(native: Native) -> None:
    budget = bigmem.Budget("16MiB", timeout=0.1)
    allocator = bigmem.ArenaAllocator(budget=budget, name="vectors")
    block = touched(allocator, 8 * MIB)
    with pytest.raises(bigmem.OutOfMemory, match="vectors holds 8 MiB live"):
        allocator.allocate(10 * MIB)
    with pytest.raises(bigmem.OutOfMemory, match="no room for 1 GiB in a budget of 16 MiB"):
        allocator.allocate("1GiB")
    block.release()
    assert allocator.allocate(10 * MIB).nbytes == 10 * MIB


def test_idle_memory_of_other_allocators_gives_way(native: Native) -> None:
    budget = bigmem.Budget(32 * MIB)
    one = native(bigmem.Recycle(decay=1000), "never", budget=budget)
    other = native(bigmem.Recycle(decay=1000), "never", budget=budget)
    touched(one, 30 * MIB).release()
    assert one.stats().warm == 30 * MIB
    block = touched(other, 30 * MIB)
    assert one.stats().warm <= 2 * MIB
    assert budget.used <= budget.limit
    assert other.stats().waits == 1
    block.release()


def test_an_allocation_waits_for_a_reclaim_under_way(native: Native) -> None:
    table = _core.ProbedPages()
    budget = bigmem.Budget(32 * MIB)
    allocator = native(bigmem.Deferred(), "never", budget=budget, table=table)
    block = touched(allocator, 16 * MIB)
    table.delay("decommit", 0.3)
    block.release()
    while not allocator.stats().reclaiming:
        time.sleep(0.001)
    assert allocator.allocate(32 * MIB).nbytes == 32 * MIB
    assert allocator.stats().wait_seconds > 0


def test_an_allocation_waits_for_fences(native: Native) -> None:
    budget = bigmem.Budget(32 * MIB)
    allocator = native(bigmem.Recycle(), "never", budget=budget)
    fence = threading.Event()

    class Event:
        def query(self) -> bool:
            return fence.is_set()

    block = touched(allocator, 30 * MIB)
    block.fence(Event())
    block.release()
    timer = threading.Timer(0.2, fence.set)
    timer.start()
    assert allocator.allocate(20 * MIB).nbytes == 20 * MIB
    assert fence.is_set()
    timer.join()


def test_the_limit_holds_under_many_threads(native: Native) -> None:
    budget = bigmem.Budget(24 * MIB)
    allocators = [native(policy, "never", budget=budget) for policy in POLICIES]
    too_much: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            if (used := budget.used) > budget.limit:
                too_much.append(used)

    def work(allocator: bigmem.Allocator) -> None:
        for step in range(60):
            touched(allocator, (1 + step % 5) * MIB)

    watcher = threading.Thread(target=watch)
    threads = [threading.Thread(target=work, args=(a,)) for a in allocators]
    for thread in [watcher, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    watcher.join()
    assert too_much == []
    for allocator in allocators:
        allocator.flush(20)
        allocator.trim()
    assert budget.used == 0


def test_a_budget_is_credited_when_its_allocators_die(native: Native) -> None:
    budget = bigmem.Budget(64 * MIB)
    for policy in POLICIES:
        allocator = native(policy, "never", budget=budget)
        touched(allocator, 8 * MIB)
        del allocator
        end = time.monotonic() + 20
        while budget.used:
            assert time.monotonic() < end
            time.sleep(0.005)


def test_a_block_that_fits_only_before_rounding_is_refused_at_once() -> None:
    # Five MiB count as six in huge pages, one byte as a page of 4 KiB.
    budget = bigmem.Budget("5MiB")
    allocator = bigmem.ArenaAllocator(pages=bigmem.AnonymousPages(huge="always"), budget=budget)
    expected = 5 if bigmem.AnonymousPages()._resolve() == "never" else 6
    if expected == 6:
        with pytest.raises(bigmem.OutOfMemory, match="no room for 6 MiB in a budget of 5 MiB"):
            allocator.allocate("5MiB")
    assert allocator.allocate("4MiB").nbytes == 4 * MIB

    small = bigmem.ArenaAllocator(budget=bigmem.Budget(4097))
    first = small.allocate(1)
    with pytest.raises(bigmem.OutOfMemory, match="no room for 4 KiB"):
        small.allocate(1)
    first.release()
    assert small.allocate(4096).nbytes == 4096


def test_limits_beyond_every_address_space_are_no_limits() -> None:
    endless = 1 << 70
    budget = bigmem.Budget(endless)
    release = bigmem.Recycle(max_warm=endless)
    allocator = bigmem.ArenaAllocator(budget=budget, release=release, reserve=endless)
    assert allocator.allocate(MIB).nbytes == MIB
    assert budget.limit == endless
