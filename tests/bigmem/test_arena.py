"""The arena's reservation, its zones, its decay, and what it does when the system refuses."""

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_for

import bigmem
from bigmem import _core, osmem
from bigmem.native import NativeAllocator

Native = Callable[..., NativeAllocator]
MIB = 1 << 20


def touched(allocator: bigmem.Allocator, nbytes: int) -> bigmem.Block:
    block = allocator.allocate(nbytes)
    np.frombuffer(memoryview(block), np.uint8)[:] = 1
    return block


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def test_nothing_is_reserved_before_the_first_allocation(native: Native) -> None:
    table = _core.ProbedPages()
    allocator = native(bigmem.Recycle(), "auto", table=table)
    assert table.calls("reserve") == (0, 0)
    for _ in range(50):
        allocator.allocate(300_000)
        allocator.allocate(8 * MIB)
    # One reservation for each page size, whatever follows.
    assert table.calls("reserve")[0] == 2
    assert allocator.stats().clean > osmem.available_bytes()


def test_a_small_reservation_grows_by_further_regions() -> None:
    allocator = bigmem.ArenaAllocator(
        pages=bigmem.AnonymousPages(huge="never"), reserve="8MiB", release=bigmem.Deferred()
    )
    blocks = [touched(allocator, 3 * MIB) for _ in range(10)] + [touched(allocator, 20 * MIB)]
    assert allocator.stats().live == 50 * MIB
    assert len({block.address for block in blocks}) == 11


def test_a_steady_loop_takes_no_page_fault(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "never")
    touched(allocator, 32 * MIB)
    faults = _faults()
    for _ in range(20):
        touched(allocator, 32 * MIB)
    assert _faults() - faults < 1000  # a single fresh round takes 8192
    stats = allocator.stats()
    assert stats.warm_hits == 20
    assert stats.peak_resident == 32 * MIB


def _faults() -> int:
    return int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[7])


def test_warm_memory_goes_back_by_itself_when_idle(native: Native) -> None:
    allocator = native(bigmem.Recycle(decay=1.0), "never")
    touched(allocator, 64 * MIB).release()
    before = osmem.resident_bytes()
    wait_until(lambda: allocator.stats().warm < 64 * MIB)
    wait_until(lambda: allocator.stats().warm == 0)
    assert before - osmem.resident_bytes() > 56 * MIB
    assert allocator.stats().reclaim_seconds > 0


def test_what_is_warm_beyond_the_maximum_goes_back_without_waiting(native: Native) -> None:
    allocator = native(bigmem.Recycle(decay=1e6, max_warm=8 * MIB), "never")
    blocks = [touched(allocator, 4 * MIB) for _ in range(8)]
    for block in blocks:
        block.release()
    wait_until(lambda: allocator.stats().warm <= 8 * MIB)
    assert allocator.stats().warm == 8 * MIB


@pytest.mark.parametrize("huge", ["never", "auto"])
def test_many_small_blocks_merge_into_room_for_a_large_one(native: Native, huge: str) -> None:
    allocator = native(bigmem.Recycle(decay=1000), huge)
    blocks = [touched(allocator, 20_000) for _ in range(2000)]
    peak = allocator.stats().peak_resident
    del blocks
    touched(allocator, 36 * MIB)
    assert allocator.stats().peak_resident == peak
    allocator.trim()
    assert allocator.stats().warm == 0


@pytest.mark.parametrize("huge", ["never", "auto", "always"])
def test_a_block_costs_its_size_in_whole_pages(native: Native, huge: str) -> None:
    allocator = native(bigmem.Recycle(), huge)
    for nbytes in (1, 4096, 100_000, 2 * MIB, 2 * MIB + 1, 3 * MIB, 5 * MIB + 1, 33 * MIB - 1):
        block = allocator.allocate(nbytes)
        assert allocator.stats().live == -(-nbytes // 4096) * 4096
        block.release()


def test_what_a_block_leaves_of_its_last_huge_page_serves_small_blocks(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "always")
    large = allocator.allocate(5 * MIB + 4096)
    assert large.address % (2 * MIB) == 0
    stats = allocator.stats()
    assert (stats.live, stats.warm) == (5 * MIB + 4096, MIB - 4096)
    small = allocator.allocate(300_000)
    assert large.address + large.nbytes <= small.address < large.address + 6 * MIB
    assert allocator.stats().resident == 6 * MIB
    # What goes back is whole huge pages in which nothing is live.
    large.release()
    assert allocator.trim() == 4 * MIB
    stats = allocator.stats()
    assert (stats.live, stats.warm) == (303_104, 2 * MIB - 303_104)
    small.release()
    assert allocator.trim() == 2 * MIB
    assert allocator.stats().resident == 0


def test_under_inline_the_rest_goes_back_with_the_last_block_of_its_page(native: Native) -> None:
    allocator = native(bigmem.Inline(), "always")
    large = allocator.allocate(5 * MIB)
    small = allocator.allocate(MIB)
    assert allocator.stats().resident == 6 * MIB
    large.release()
    assert (allocator.stats().live, allocator.stats().warm) == (MIB, MIB)
    small.release()
    assert allocator.stats().resident == 0


def test_rests_are_no_excess_of_warm_memory(native: Native) -> None:
    allocator = native(bigmem.Recycle(max_warm=0), "always")
    held = [allocator.allocate(3 * MIB) for _ in range(4)]
    assert allocator.stats().warm == 4 * MIB
    held.pop()
    wait_for(lambda: allocator.stats().resident == 12 * MIB)
    reclaimed = allocator.stats().reclaimed
    assert reclaimed == 4 * MIB
    time.sleep(0.05)
    assert allocator.stats().reclaimed == reclaimed


@pytest.mark.parametrize("huge", ["never", "auto", "always"])
def test_many_small_blocks_and_then_a_large_one_do_not_double_memory(
    native: Native, huge: str
) -> None:
    allocator = native(bigmem.Recycle(decay=1000), huge)
    held = [allocator.allocate(20_000) for _ in range(4000)]
    del held
    small = allocator.stats().warm
    large = allocator.allocate(64 * MIB)
    assert allocator.stats().resident < 1.1 * max(small, large.nbytes)


def test_huge_blocks_lie_on_borders_of_huge_pages(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "always")
    held = [allocator.allocate((2 + i) * MIB + i * 4096) for i in range(8)]
    assert all(block.address % (2 * MIB) == 0 for block in held)
    # Unless asked for, huge pages take no block of which they would waste much.
    plain = native(bigmem.Recycle(), "auto")
    block = plain.allocate(2 * MIB + 4096)
    assert plain.stats().resident == 2 * MIB + 4096
    block.release()


@pytest.mark.skipif(
    osmem.transparent_huge_pages() == "never", reason="this system has no transparent huge pages"
)
@pytest.mark.parametrize("mapping_per_block", [False, True])
def test_page_sizes_are_what_was_asked_for(native: Native, mapping_per_block: bool) -> None:
    release = bigmem.Inline()
    for huge, least, most in (("always", 58, 64), ("never", 0, 0)):
        allocator = native(release, huge, mapping_per_block=mapping_per_block)
        before = osmem.huge_page_bytes()
        block = touched(allocator, 64 * MIB)
        got = osmem.huge_page_bytes() - before
        # Fragmentation may refuse a few.
        assert least * MIB <= got <= most * MIB, huge
        block.release()


def test_one_variable_turns_huge_pages_off(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPY_MADVISE_HUGEPAGE", "0")
    allocator = native(bigmem.Inline(), "auto")
    before = osmem.huge_page_bytes()
    block = touched(allocator, 32 * MIB)
    assert osmem.huge_page_bytes() <= before
    assert allocator.stats().live == block.nbytes


def test_lazy_memory_is_told_apart_and_reused(native: Native) -> None:
    allocator = native(bigmem.Inline(advice="free"), "never")
    touched(allocator, 8 * MIB).release()
    stats = allocator.stats()
    assert (stats.lazy, stats.warm, stats.reclaimed) == (8 * MIB, 0, 0)
    assert not np.frombuffer(memoryview(allocator.allocate(8 * MIB, zeroed=True)), np.uint8).any()
    assert allocator.stats().peak_resident == 8 * MIB
    assert allocator.trim() == 8 * MIB
    assert allocator.stats().lazy == 0


def test_trim_gets_what_the_worker_is_just_making_lazy(native: Native) -> None:
    table = _core.ProbedPages()
    allocator = native(bigmem.Deferred(advice="free"), "never", table=table)
    block = touched(allocator, 4 * MIB)
    table.delay("decommit", 0.01)
    block.release()
    wait_until(lambda: table.calls("decommit")[0] > 0)
    allocator.trim()
    assert allocator.stats().resident == 0


@pytest.mark.parametrize("policy", [bigmem.Inline(), bigmem.Deferred(), bigmem.Recycle(decay=0)])
def test_a_refused_reclaim_loses_nothing(
    native: Native, policy: bigmem.Inline | bigmem.Deferred | bigmem.Recycle
) -> None:
    table = _core.ProbedPages()
    allocator = native(policy, "never", table=table)
    table.refuse("decommit", errno.EINVAL)
    touched(allocator, 8 * MIB).release()
    assert allocator.flush(20)
    wait_until(lambda: allocator.stats().reclaim_failures > 0)
    wait_until(lambda: allocator.stats().reclaiming == 0)
    assert allocator.stats().warm == 8 * MIB
    assert allocator.stats().reclaimed == 0
    # It is not tried over and over, but it is reused, and then tried again.
    calls = table.calls("decommit")[0]
    time.sleep(0.1)
    assert table.calls("decommit")[0] == calls
    table.refuse("decommit", 0)
    block = allocator.allocate(4 * MIB, zeroed=True)
    assert allocator.stats().warm_hits == 1
    assert not np.frombuffer(memoryview(block), np.uint8).any()
    block.release()
    assert allocator.flush(20)
    wait_until(lambda: allocator.stats().reclaimed == 4 * MIB)


def test_a_refused_free_advice_falls_back_to_dontneed(native: Native) -> None:
    # The double refuses every advice; a real kernel refuses MADV_FREE alone on odd mappings.
    table = _core.ProbedPages()
    allocator = native(bigmem.Inline(advice="free"), "never", table=table)
    table.refuse("decommit", errno.EINVAL)
    touched(allocator, MIB).release()
    assert table.calls("decommit")[0] == 2
    assert allocator.stats().reclaim_failures == 1


@pytest.mark.parametrize("mapping_per_block", [False, True])
def test_a_refused_reservation_is_out_of_memory_and_heals(
    native: Native, mapping_per_block: bool
) -> None:
    table = _core.ProbedPages()
    allocator = native(bigmem.Inline(), "never", table=table, mapping_per_block=mapping_per_block)
    table.refuse("reserve", errno.ENOMEM)
    with pytest.raises(bigmem.OutOfMemory, match="refused"):
        allocator.allocate(MIB)
    table.refuse("reserve", 0)
    touched(allocator, MIB)
    assert allocator.stats().allocations == 1


def test_a_refused_commit_is_out_of_memory_and_heals(native: Native) -> None:
    table = _core.ProbedPages(True)
    allocator = native(bigmem.Deferred(), "never", table=table)
    table.refuse("commit", errno.ENOMEM)
    with pytest.raises(bigmem.OutOfMemory):
        allocator.allocate(MIB)
    table.refuse("commit", 0)
    touched(allocator, MIB).release()
    assert allocator.flush(20)
    assert allocator.stats().resident == 0


def test_a_closed_arena_returns_its_address_range(native: Native) -> None:
    for policy in (bigmem.Inline(), bigmem.Deferred(), bigmem.Recycle()):
        table = _core.ProbedPages()
        allocator = native(policy, "never", table=table)
        block = touched(allocator, 2 * MIB)
        touched(allocator, 2 * MIB).release()
        allocator.close()
        del allocator
        block.release()
        del block
        wait_until(lambda t=table: t.calls("reserve")[1] == t.calls("unreserve")[1])  # type: ignore[misc]


def test_mappings_cannot_be_recycled() -> None:
    with pytest.raises(bigmem.BigmemError, match="use ArenaAllocator"):
        bigmem.MappedAllocator(release=bigmem.Recycle())  # type: ignore[arg-type]


def test_deferred_mappings_are_unmapped_in_chunks(native: Native) -> None:
    table = _core.ProbedPages()
    allocator = native(bigmem.Deferred(), "never", table=table, mapping_per_block=True)
    touched(allocator, 96 * MIB).release()
    assert allocator.flush(20)
    assert table.calls("unreserve")[0] > 1
    assert table.calls("unreserve")[1] == table.calls("reserve")[1] == 96 * MIB
    assert allocator.stats().clean == 0


def test_a_pool_of_several_workers_drains_together(native: Native) -> None:
    pool = bigmem.ReclaimPool(workers=3)
    table = _core.ProbedPages()
    allocator = native(bigmem.Deferred(), "never", table=table, reclaim=pool)
    blocks = [touched(allocator, MIB) for _ in range(64)]
    table.delay("decommit", 0.02)
    del blocks
    wait_until(lambda: pool.running == 3)
    wait_until(lambda: allocator.stats().reclaiming >= 2 * MIB)
    assert allocator.flush(30)
    with pytest.raises(bigmem.BigmemError):
        bigmem.ReclaimPool(workers=0)


def test_flush_is_a_barrier_for_many_threads(native: Native) -> None:
    table = _core.ProbedPages()
    allocator = native(bigmem.Deferred(), "never", table=table)
    table.delay("decommit", 0.002)
    wrong: list[object] = []

    def work(seed: int) -> None:
        for _ in range(10):
            block = allocator.allocate((seed + 1) * 64 * 1024)
            begin = block.address
            block.release()
            if not allocator.flush(30):
                wrong.append(begin)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    stats = allocator.stats()
    assert (stats.live, stats.pending, stats.reclaiming) == (0, 0, 0)
    assert stats.waits == 60


def test_policies_and_pages_refuse_nonsense() -> None:
    for nonsense in (
        lambda: bigmem.Inline(advice="cold"),  # type: ignore[arg-type]
        lambda: bigmem.Recycle(decay=-1),
        lambda: bigmem.Recycle(decay=float("nan")),
        lambda: bigmem.Recycle(max_warm="much"),
        lambda: bigmem.AnonymousPages(huge="big"),  # type: ignore[arg-type]
        lambda: bigmem.AnonymousPages(numa="far"),  # type: ignore[arg-type]
        lambda: bigmem.ArenaAllocator(release="recycle"),  # type: ignore[arg-type]
        lambda: bigmem.ArenaAllocator(pages="huge"),  # type: ignore[arg-type]
        lambda: bigmem.Budget(0),
    ):
        with pytest.raises(bigmem.BigmemError):
            nonsense()
    assert bigmem.Recycle(max_warm="1GiB").max_warm == 1 << 30
    assert bigmem.Recycle() == bigmem.Recycle(10.0)


def test_the_maximum_of_warm_memory_never_makes_lazy_memory_lazy_again(native: Native) -> None:
    table = _core.ProbedPages()
    policy = bigmem.Recycle(decay=1e6, max_warm=MIB, advice="free")
    allocator = native(policy, "always", table=table)
    touched(allocator, 8 * MIB).release()  # in the zone of huge pages, looked at first
    wait_until(lambda: allocator.stats().lazy == 8 * MIB)
    blocks = [touched(allocator, MIB // 4) for _ in range(20)]
    for block in blocks:
        block.release()
    wait_until(lambda: allocator.stats().warm <= MIB)
    calls = table.calls("decommit")[0]
    assert calls < 100
    time.sleep(0.2)
    assert table.calls("decommit")[0] == calls


def test_trim_counts_only_what_went_back(native: Native) -> None:
    table = _core.ProbedPages()
    allocator = native(bigmem.Recycle(), "never", table=table)
    touched(allocator, 8 * MIB).release()
    table.refuse("decommit", errno.EINVAL)
    assert allocator.trim() == 0
    assert allocator.stats().warm == 8 * MIB


def test_an_allocator_is_known_to_others_only_once_it_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known: list[object] = []

    def probe() -> bool:
        bigmem.stats()
        bigmem.trim()
        known.extend(bigmem.allocator.open_allocators())
        return True

    monkeypatch.setattr("bigmem.arena.pages.huge_pages_work", probe)
    allocator = bigmem.ArenaAllocator()
    assert allocator not in known
    assert allocator in bigmem.allocator.open_allocators()
