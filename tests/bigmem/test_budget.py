"""Limits: they hold at every moment, and idle memory gives way before anything fails."""

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bigmem
from bigmem import _core, pressure
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
    with pytest.raises(bigmem.OutOfMemory, match="no room for 6 MiB in a budget of 5 MiB"):
        allocator.allocate("5MiB")
    assert allocator.allocate("4MiB").nbytes == 4 * MIB
    # Unless huge pages were asked for, a block that has no room in them gets small ones.
    plain = bigmem.ArenaAllocator(budget=bigmem.Budget("5MiB"))
    assert plain.allocate("5MiB").nbytes == 5 * MIB

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


@pytest.mark.parametrize("share", ["0%", "120%", "-3%", "abc%", "%", "5%%", "nan%", "1e1%", "0.0%"])
def test_shares_that_are_none(share: str) -> None:
    with pytest.raises(bigmem.BigmemError, match=f"^'{share}' is no share of the memory; write"):
        bigmem.Budget(share)


@given(memory=st.integers(1, 1 << 33), tenths=st.integers(1, 1000))
def test_a_share_is_that_percentage(memory: int, tenths: int) -> None:
    # Kilobytes of the machine, as /proc/meminfo has them.
    with limited_to(memory * 1024) as set_limit:
        budget = bigmem.Budget(f"{tenths / 10}%")
        exact = memory * 1024 * tenths // 1000
        assert exact - 1 <= budget.limit <= exact + 1
        set_limit(512)
        assert budget.limit in (512 * tenths // 1000, 512 * tenths // 1000 - 1)


@contextlib.contextmanager
def limited_to(nbytes: int) -> Iterator[Callable[[int], None]]:
    """A machine of that much memory, as far as budgets and allocators see; a call changes it."""
    with tempfile.TemporaryDirectory() as name:
        meminfo = Path(name) / "proc/meminfo"
        meminfo.parent.mkdir()

        def set_limit(nbytes: int) -> None:
            meminfo.write_text(f"MemTotal: {nbytes} bytes\n")

        set_limit(nbytes)
        with mock.patch.object(pressure, "_root", Path(name)):
            yield set_limit
    pressure._watch()


def test_a_limit_lowered_below_what_is_used_takes_idle_memory_only(native: Native) -> None:
    with limited_to(100 * MIB) as set_limit:
        budget = bigmem.Budget("80%", timeout=0.1)
        one = native(bigmem.Recycle(decay=1000), "never", budget=budget)
        other = native(bigmem.Recycle(decay=1000), "never", budget=budget)
        live = touched(one, 20 * MIB)
        touched(one, 30 * MIB).release()
        touched(other, 25 * MIB).release()
        set_limit(50 * MIB)
        assert (budget.limit, budget.used) == (40 * MIB, 75 * MIB)
        # It would fit into warm memory, and would leave more in use than the limit.
        block = other.allocate(10 * MIB)
        assert budget.used <= budget.limit
        with pytest.raises(bigmem.OutOfMemory, match="no room for 15 MiB in a budget of 40 MiB"):
            other.allocate(15 * MIB)
        assert bytes(memoryview(live)) == bytes([1]) * (20 * MIB)
        set_limit(100 * MIB)
        assert other.allocate(50 * MIB).nbytes == 50 * MIB
        block.release()


def test_allocations_read_the_limit_again_within_a_second(native: Native) -> None:
    with limited_to(100 * MIB) as set_limit:
        budget = bigmem.Budget("50%", timeout=0)
        allocator = native(bigmem.Recycle(), "never", budget=budget)
        kept = allocator.allocate(4096)
        set_limit(20 * MIB)
        end = time.monotonic() + 20
        while budget._core.limit() == 50 * MIB:
            assert time.monotonic() < end
            allocator.allocate(4096)
        assert budget._core.limit() == 10 * MIB
        kept.release()


class Cache:
    """Blocks that a program can do without."""

    def __init__(self, budget: bigmem.Budget, allocator: bigmem.Allocator, nbytes: int) -> None:
        self.blocks = [touched(allocator, nbytes) for _ in range(3)]
        self.calls: list[int] = []
        budget.on_pressure(self.drop_one)

    def drop_one(self, nbytes: int) -> None:
        self.calls.append(nbytes)
        if self.blocks:
            self.blocks.pop()


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_callbacks_are_asked_until_the_allocation_fits(
    native: Native, policy: bigmem.Inline | bigmem.Deferred | bigmem.Recycle
) -> None:
    budget = bigmem.Budget(32 * MIB, timeout=5)
    allocator = native(policy, "never", budget=budget)
    cache = Cache(budget, allocator, 10 * MIB)
    block = allocator.allocate(16 * MIB)
    assert cache.calls == [14 * MIB, 4 * MIB]
    assert len(cache.blocks) == 1
    assert budget.used <= budget.limit
    block.release()
    allocator.allocate(16 * MIB)
    assert len(cache.calls) == 2  # idle memory sufficed


def test_callbacks_that_free_nothing_are_asked_once(native: Native) -> None:
    budget = bigmem.Budget(32 * MIB, timeout=0.05)
    allocator = native(bigmem.Recycle(), "never", budget=budget)
    asked: list[int] = []

    @budget.on_pressure
    def temporary(nbytes: int) -> None:
        asked.append(nbytes)
        allocator.allocate(MIB).release()  # no progress, although something was released

    assert callable(temporary)
    kept = allocator.allocate(30 * MIB)
    with pytest.raises(bigmem.OutOfMemory, match="holds 30 MiB live"):
        allocator.allocate(16 * MIB)
    assert asked == [14 * MIB]
    kept.release()


def test_errors_in_callbacks_are_reported_and_change_nothing(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reported.append(args.exc_value))
    budget = bigmem.Budget(32 * MIB, timeout=0.05)
    allocator = native(bigmem.Recycle(), "never", budget=budget)

    @budget.on_pressure
    def fails(nbytes: int) -> None:
        raise ValueError(nbytes)

    cache = Cache(budget, allocator, 10 * MIB)
    allocator.allocate(8 * MIB)
    assert [error.args for error in reported if error is not None] == [(6 * MIB,)]
    assert cache.calls == [6 * MIB]

    @budget.on_pressure
    def interrupts(nbytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        allocator.allocate(20 * MIB)


def test_an_allocation_inside_a_callback_calls_none(native: Native) -> None:
    budget = bigmem.Budget(32 * MIB, timeout=0.05)
    allocator = native(bigmem.Recycle(), "never", budget=budget)
    asked: list[int] = []
    errors: list[str] = []

    @budget.on_pressure
    def greedy(nbytes: int) -> None:
        asked.append(nbytes)
        try:
            allocator.allocate(20 * MIB)
        except bigmem.OutOfMemory as error:
            errors.append(str(error))

    kept = allocator.allocate(30 * MIB)
    with pytest.raises(bigmem.OutOfMemory):
        allocator.allocate(16 * MIB)
    assert (len(asked), len(errors)) == (1, 1)
    kept.release()


def test_callbacks_come_before_waiting_for_fences(native: Native) -> None:
    budget = bigmem.Budget(32 * MIB, timeout=0.05)
    allocator = native(bigmem.Recycle(), "never", budget=budget)
    done = threading.Event()

    class Event:
        def query(self) -> bool:
            return done.is_set()

    fenced = touched(allocator, 30 * MIB)
    fenced.fence(Event())
    fenced.release()
    budget.on_pressure(lambda nbytes: done.set())
    assert allocator.allocate(20 * MIB).nbytes == 20 * MIB


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_first_allocation_after_memory_ran_short_tells_the_callbacks(
    native: Native, policy: bigmem.Inline | bigmem.Deferred | bigmem.Recycle
) -> None:
    with limited_to(100 * MIB):
        budget = bigmem.Budget(64 * MIB)
        allocator = native(policy, "never", budget=budget)
        cache = Cache(budget, allocator, MIB)
        kept = [allocator.allocate(MIB)]
        assert cache.calls == []
        events = pressure.events()
        _core.report_pressure(3)
        end = time.monotonic() + 20
        while not cache.calls:  # a worker has to see it, or the budget, once a second
            assert time.monotonic() < end
            kept[:] = [allocator.allocate(2 * MIB)]
        kept += [allocator.allocate(MIB) for _ in range(3)]
        assert cache.calls == [2 * MIB]
        assert len(cache.blocks) == 2
        assert pressure.events() == events + 1
