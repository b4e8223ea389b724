"""What the workers do, what happens when they cannot, and how a program hears of it."""

import errno
import time
from collections.abc import Callable

import numpy as np
import pytest
from waiting import wait_for

import bigmem
from bigmem import _core
from bigmem.native import NativeAllocator

Native = Callable[..., NativeAllocator]
Run = Callable[..., str]
MIB = 1 << 20


def test_a_lost_worker_is_replaced_without_anybody_calling(native: Native) -> None:
    pool = bigmem.ReclaimPool(2)
    allocator = native(bigmem.Deferred(), "never", reclaim=pool)
    held = [allocator.allocate(8 * MIB) for _ in range(4)]
    assert pool.running == 2
    for lost in range(1, 4):
        pool._core.lose_worker()
        wait_for(lambda lost=lost: pool.replaced == lost)  # type: ignore[misc]
        wait_for(lambda: pool.running == 2)
        held.pop()
        wait_for(lambda: allocator.stats().pending == allocator.stats().reclaiming == 0)
    assert allocator.stats().reclaimed == 24 * MIB


def test_a_pool_whose_only_worker_was_lost_goes_on(native: Native) -> None:
    pool = bigmem.ReclaimPool()
    allocator = native(bigmem.Recycle(decay=0), "never", reclaim=pool)
    held = allocator.allocate(8 * MIB)
    pool._core.lose_worker()
    wait_for(lambda: pool.replaced == 1)
    del held
    wait_for(lambda: allocator.stats().warm == allocator.stats().reclaiming == 0)
    assert pool.running == 1


def test_each_kind_of_incident_is_logged_once_and_counted_every_time(run_prepared: Run) -> None:
    out = run_prepared(
        """
        import errno, logging
        logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
        table = _core.ProbedPages()
        allocator = native(bigmem.Deferred(), table)
        table.refuse("decommit", errno.ENOMEM)
        for _ in range(3):
            fill(allocator, 1 << 20)
            assert allocator.flush(10)
        pool = bigmem.ReclaimPool()
        other = native(bigmem.Deferred(), reclaim=pool)
        block = other.allocate(1 << 20)
        for lost in (1, 2):
            pool._core.lose_worker()
            wait_for(lambda: pool.replaced == lost)
            other.stats()
        assert allocator.stats().reclaim_failures == 3
        """
    )
    lines = out.splitlines()
    assert len(lines) == 2, out
    assert all(line.startswith("bigmem WARNING ") for line in lines)
    assert "Cannot allocate memory" in lines[0]
    assert "worker" in lines[1]


def test_a_release_beyond_the_bound_returns_and_the_next_allocation_helps(native: Native) -> None:
    # The worker is held up in a first reclaim, so that all the others wait.
    table = _core.ProbedPages()
    allocator = native(bigmem.Deferred(max_pending="16MiB"), "never", table=table)
    first = allocator.allocate(4 * MIB)
    held = [allocator.allocate(8 * MIB) for _ in range(4)]
    table.delay("decommit", 2.0)
    del first
    wait_for(lambda: allocator.stats().reclaiming > 0)
    table.delay("decommit", 0.0)
    before = time.monotonic()
    held.clear()
    assert time.monotonic() - before < 1.0, "a release waited"
    assert allocator.stats().pending == 32 * MIB
    block = allocator.allocate(1 * MIB)
    assert allocator.stats().pending <= 16 * MIB
    assert allocator.stats().waits == 1
    assert allocator.flush(20)
    assert block.nbytes == MIB


def test_memory_that_waits_for_a_fence_is_not_waited_for(native: Native) -> None:
    class Never:
        done = False

    allocator = native(bigmem.Deferred(max_pending=0), "never")
    fence = Never()
    block = allocator.allocate(8 * MIB)
    block.fence(fence)
    block.release()
    for _ in range(3):
        allocator.allocate(8 * MIB)
    assert allocator.stats().pending >= 8 * MIB
    fence.done = True
    assert allocator.flush(10)


def test_the_bound_is_checked_like_any_size() -> None:
    with pytest.raises(bigmem.BigmemError, match="is no size"):
        bigmem.Deferred(max_pending="much")
    assert bigmem.Deferred(max_pending="1MiB").max_pending == MIB


@pytest.mark.parametrize("huge", ["never", "always"])
@pytest.mark.parametrize("mapped", [False, True])
def test_prefaulted_memory_takes_no_fault(native: Native, huge: str, mapped: bool) -> None:
    import resource

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

    allocator = native(bigmem.Inline(), huge, mapping_per_block=mapped)
    before = faults()
    lazy = np.frombuffer(allocator.allocate(64 * MIB), np.uint8)  # type: ignore[call-overload]
    lazy[::4096] = 1
    assert faults() - before >= 32
    ready = np.frombuffer(  # type: ignore[call-overload]
        allocator.allocate(64 * MIB, prefault=True, zeroed=True), np.uint8
    )
    before = faults()
    ready[::4096] = 1
    assert faults() - before < 16
    assert ready[:10].tolist() == [1] + [0] * 9


def test_a_refused_prefault_leaves_the_faults_to_the_first_touch(native: Native) -> None:
    table = _core.ProbedPages()
    table.refuse("populate", errno.ENOMEM)
    allocator = native(bigmem.Recycle(), "never", table=table)
    array = np.frombuffer(allocator.allocate(4 * MIB, prefault=True), np.uint8)  # type: ignore[call-overload]
    array[:] = 1
    assert table.calls("populate")[0] == 1
