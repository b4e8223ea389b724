"""Arenas whose released blocks wait for a GPU; what the GPU does, the test says."""

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest
from conftest import POLICIES, UNIT, native
from waiting import wait_for

import bigmem
from bigmem import _core
from bigmem.native import NativeAllocator

MIB = 1 << 20
KINDS = ["inline", "deferred", "recycle", "recycle-at-once"]


@pytest.fixture
def gpu() -> _core.ProbedFences:
    return _core.ProbedFences()


@pytest.fixture(params=KINDS)
def arena(request: pytest.FixtureRequest, gpu: _core.ProbedFences) -> NativeAllocator:
    return pinned(gpu, POLICIES[request.param])


def pinned(
    gpu: _core.ProbedFences,
    release: "bigmem.ReleasePolicy | None" = None,
    table: "_core.ProbedPages | None" = None,
    budget: bigmem.Budget | None = None,
    wipe: bool = False,
) -> NativeAllocator:
    """As `PinnedAllocator`, on pages that any machine has."""
    if table is None:
        table = _core.ProbedPages(strict=True, granularity=UNIT, pinned=True)
    return native(
        bigmem.Recycle() if release is None else release,
        "auto",
        table=table,
        fences=gpu,
        budget=budget,
        wipe=wipe,
    )


def finish(gpu: _core.ProbedFences, allocator: NativeAllocator) -> None:
    """Let all work end, that which guards are still to be made for included."""

    def settled() -> bool:
        gpu.finish_all()
        return allocator.stats().pending == allocator.stats().reclaiming == 0

    wait_for(settled)


def ranges_overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def test_nothing_is_reused_before_its_guard_is_done(
    arena: NativeAllocator, gpu: _core.ProbedFences
) -> None:
    block = arena.allocate(3 * MIB)
    used = (block.address, block.address + block.nbytes)
    block.release()
    others = [arena.allocate(size) for size in (3 * MIB, 4096, MIB, 2 * MIB) * 5]
    assert not any(ranges_overlap(used, (b.address, b.address + b.nbytes)) for b in others)
    assert arena._core.fenced() == arena.stats().pending == 3 * MIB
    assert not arena.flush(0.05)
    arena.trim()
    assert arena._core.fenced() == 3 * MIB
    finish(gpu, arena)
    assert arena.flush(10)
    assert gpu.calls("guard") >= 1
    assert (gpu.open(), gpu.mistakes()) == (0, 0)


def test_a_block_comes_back_warm_and_without_asking_the_system(gpu: _core.ProbedFences) -> None:
    table = _core.ProbedPages(strict=True, granularity=UNIT, pinned=True)
    arena = pinned(gpu, table=table)
    block = arena.allocate(6 * MIB)
    address = block.address
    del block
    wait_for(lambda: gpu.calls("guard") == 1)
    gpu.finish_all()
    again = arena.allocate(6 * MIB)  # asks, since nothing is warm yet, or a worker was first
    assert again.address == address
    assert arena.stats().warm_hits == 1
    assert table.calls("decommit") == (0, 0)


def test_all_fences_of_a_block_must_be_done(
    arena: NativeAllocator, gpu: _core.ProbedFences
) -> None:
    block = arena.allocate(5 * MIB)
    fences = [gpu.attach(block.address + offset) for offset in (0, 4096, 5 * MIB - 1)]
    assert None not in fences
    del block
    for fence in (fences[1], fences[2]):
        gpu.finish(fence or 0)
        assert not arena.flush(0.03)
    gpu.finish(fences[0] or 0)
    assert arena.flush(10)
    assert gpu.calls("guard") == 0
    assert (gpu.open(), gpu.mistakes()) == (0, 0)


def test_a_fence_that_was_done_before_the_release_does_without_a_guard(
    arena: NativeAllocator, gpu: _core.ProbedFences
) -> None:
    block = arena.allocate(MIB)
    for _ in range(100):
        assert gpu.attach(block.address)
        gpu.finish_all()
    assert gpu.open() <= 2, "the fences of a block that is used over and over pile up"
    del block
    assert arena.flush(10)
    assert gpu.calls("guard") == 0
    assert gpu.open() == 0


def test_fences_find_live_blocks_by_any_address_inside(
    arena: NativeAllocator, gpu: _core.ProbedFences
) -> None:
    blocks = [arena.allocate(size) for size in (4096, 100, 3 * MIB)]
    for block in blocks:
        assert gpu.attach(block.address)
        assert gpu.attach(block.address + block.nbytes - 1)
    assert _core.ProbedFences().attach(blocks[0].address) is None, "fences of someone else"
    plain = bigmem.ArenaAllocator().allocate(MIB)
    assert gpu.attach(plain.address) is None
    assert gpu.attach(0) is None
    address = blocks[2].address
    del blocks, block
    assert gpu.attach(address) is None, "it is released"
    finish(gpu, arena)
    assert gpu.open() == 0


def test_a_release_waits_while_no_guard_can_be_made(
    arena: NativeAllocator, gpu: _core.ProbedFences
) -> None:
    gpu.allow_guards(False)
    block = arena.allocate(3 * MIB)
    del block
    wait_for(lambda: gpu.calls("guard") >= 3)
    assert arena._core.fenced() == 3 * MIB
    assert not arena.flush(0.03)
    gpu.allow_guards(True)
    finish(gpu, arena)
    assert arena.flush(10)


class Event:
    done = False


@pytest.mark.parametrize("gpu_first", [False, True])
def test_a_fence_of_python_and_the_gpu_must_both_be_done(
    arena: NativeAllocator, gpu: _core.ProbedFences, gpu_first: bool
) -> None:
    event = Event()
    block = arena.allocate(3 * MIB)
    block.fence(event)
    block.release()
    for first in (gpu_first, not gpu_first):
        assert not arena.flush(0.03)
        assert arena._core.fenced() == 3 * MIB
        if first:
            wait_for(lambda: gpu.calls("guard") > 0)
            gpu.finish_all()
        else:
            event.done = True
    assert arena.flush(10)
    assert (gpu.open(), gpu.mistakes()) == (0, 0)


def test_neither_releases_nor_allocations_wait_for_who_asks(gpu: _core.ProbedFences) -> None:
    arena = pinned(gpu)
    kept = [arena.allocate(MIB) for _ in range(100)]
    del kept[:1]
    gpu.delay(1.0)
    wait_for(lambda: gpu.calls("guard") + gpu.calls("done") > 0)
    start = time.monotonic()
    kept += [arena.allocate(MIB) for _ in range(100)]
    del kept[:150]
    arena.stats()
    assert time.monotonic() - start < 0.9, "somebody waited for a call of the driver"
    gpu.delay(0)
    finish(gpu, arena)


def test_every_policy_ends_where_it_always_does(
    arena: NativeAllocator, gpu: _core.ProbedFences
) -> None:
    block = arena.allocate(6 * MIB)
    del block
    finish(gpu, arena)
    if arena.release == bigmem.Recycle():
        assert arena.stats().warm == 6 * MIB
    else:
        wait_for(lambda: arena.stats().reclaimed == 6 * MIB)
        assert arena.stats().warm == 0
    assert arena.stats().release_seconds < 0.01


@pytest.mark.parametrize("wipe", [False, True])
def test_trim_takes_what_is_done_and_later_the_rest(gpu: _core.ProbedFences, wipe: bool) -> None:
    arena = pinned(gpu, wipe=wipe)
    blocks = [arena.allocate(2 * MIB) for _ in range(200)]
    fences = [gpu.attach(block.address) for block in blocks]
    del blocks
    for fence in fences[:150]:
        gpu.finish(fence or 0)
    arena.trim()
    stats = arena.stats()
    assert (stats.reclaimed, stats.pending, stats.warm) == (300 * MIB, 100 * MIB, 0)
    later = arena.allocate(4 * MIB)
    del later
    gpu.finish_all()
    wait_for(lambda: arena.stats().reclaimed == 400 * MIB)
    finish(gpu, arena)
    # Secrets are wiped in the background first.
    wait_for(lambda: (arena.stats().pending, arena.stats().warm) == (0, 4 * MIB))


def test_trim_asks_again_after_a_round_that_another_thread_had_begun(
    gpu: _core.ProbedFences,
) -> None:
    arena = pinned(gpu)
    used, idle = arena.allocate(2 * MIB), arena.allocate(2 * MIB)
    gpu.attach(used.address)
    done = gpu.attach(idle.address)
    gpu.delay(0.3)
    del used
    wait_for(lambda: gpu.calls("done") > 0)  # a worker asks
    gpu.delay(0)
    gpu.finish(done or 0)
    del idle
    # The worker may be the one that gives it back: trim() waits for that, and doesn't count it.
    arena.trim()
    assert arena.stats().reclaimed == 2 * MIB
    finish(gpu, arena)


def test_close_gives_everything_back_once_the_gpu_is_done(
    arena: NativeAllocator, gpu: _core.ProbedFences
) -> None:
    core = arena._core
    block = arena.allocate(4 * MIB)
    arena.close()
    del block
    assert core.counters()["pending"] == 4 * MIB
    finish(gpu, arena)
    wait_for(lambda: core.counters()["reclaimed"] == 4 * MIB)
    assert gpu.open() == 0


def test_an_arena_that_is_forgotten_gives_back_what_the_gpu_still_uses(
    gpu: _core.ProbedFences,
) -> None:
    table = _core.ProbedPages(strict=True, granularity=UNIT, pinned=True)
    arena = pinned(gpu, table=table)
    block = arena.allocate(4 * MIB)
    assert gpu.attach(block.address)
    del block, arena
    gc.collect()
    time.sleep(0.05)
    assert table.calls("decommit")[0] == table.calls("unreserve")[0] == 0
    gpu.finish_all()
    wait_for(lambda: table.calls("unreserve")[0] == 1)
    assert (gpu.open(), gpu.mistakes()) == (0, 0)


def test_blocks_in_garbage_cycles_wait_too(arena: NativeAllocator, gpu: _core.ProbedFences) -> None:
    for _ in range(20):
        cycle: list[object] = [np.frombuffer(memoryview(arena.allocate(MIB)), np.uint8)]
        cycle.append(cycle)
        del cycle
    gc.collect()
    assert arena.stats().releases == 20
    assert arena._core.fenced() == 20 * MIB
    finish(gpu, arena)
    assert gpu.mistakes() == 0


def test_an_allocation_waits_for_the_gpu_where_the_budget_has_no_room(
    arena: NativeAllocator, gpu: _core.ProbedFences
) -> None:
    budgeted = pinned(gpu, arena.release, budget=bigmem.Budget(32 * MIB))
    block = budgeted.allocate(30 * MIB)
    assert gpu.attach(block.address)
    block.release()
    ending = threading.Event()

    def finish_all() -> None:
        ending.set()
        gpu.finish_all()

    threading.Timer(0.2, finish_all).start()
    assert budgeted.allocate(20 * MIB).nbytes == 20 * MIB
    assert ending.is_set()
    assert budgeted.stats().wait_seconds > 0


def test_a_refusal_says_what_the_gpu_holds(gpu: _core.ProbedFences) -> None:
    arena = pinned(gpu, budget=bigmem.Budget(32 * MIB, timeout=0.05))
    kept = arena.allocate(10 * MIB)
    block = arena.allocate(20 * MIB)
    block.release()
    with pytest.raises(bigmem.OutOfMemory, match=r"20 MiB pending \(20 MiB of it .* the GPU\)"):
        arena.allocate(20 * MIB)
    assert kept.nbytes == 10 * MIB


def test_memory_of_secrets_is_wiped_after_the_gpu_is_done(gpu: _core.ProbedFences) -> None:
    table = _core.ProbedPages(strict=True, granularity=UNIT, pinned=True)
    arena = pinned(gpu, table=table, wipe=True)
    block = arena.allocate(4 * MIB)
    np.frombuffer(memoryview(block), np.uint8)[:] = 99
    address = block.address
    del block
    time.sleep(0.03)
    assert table.calls("wipe") == (0, 0)
    finish(gpu, arena)
    assert table.calls("wipe") == (1, 4 * MIB)
    again = arena.allocate(4 * MIB)
    assert again.address == address
    assert not np.frombuffer(memoryview(again), np.uint8).any()


def test_growth_is_exact_to_a_unit_and_small_blocks_share_units(gpu: _core.ProbedFences) -> None:
    table = _core.ProbedPages(strict=True, granularity=UNIT, pinned=True)
    arena = pinned(gpu, table=table)
    large = arena.allocate(129 * MIB + MIB // 2)
    assert table.calls("commit") == (1, 130 * MIB)
    small = [arena.allocate(4096) for _ in range(128)]
    assert table.calls("commit") == (1, 130 * MIB), "they are in what the large one left"
    assert arena.stats().live == 130 * MIB
    assert arena.stats().peak_live == 130 * MIB
    more = [arena.allocate(100) for _ in range(512)]
    assert table.calls("commit") == (2, 132 * MIB)
    assert arena.stats().warm == 0
    del large, small, more
    finish(gpu, arena)
    arena.trim()
    assert arena.stats().resident == 0
    assert table.calls("decommit")[1] == 132 * MIB


def test_what_a_refused_reclaim_left_is_committed_before_it_is_used(
    gpu: _core.ProbedFences,
) -> None:
    table = _core.ProbedPages(strict=True, granularity=UNIT, pinned=True)
    arena = pinned(gpu, table=table)
    block = arena.allocate(4 * MIB)
    del block
    finish(gpu, arena)
    table.refuse("decommit", 5)
    arena.trim()
    assert arena.stats().warm == 4 * MIB
    assert arena.stats().reclaim_failures > 0
    before = table.calls("commit")[1]
    small = arena.allocate(4096)
    assert table.calls("commit")[1] == before + UNIT
    assert small.nbytes == 4096


@pytest.mark.parametrize("mapped", [False, True])
def test_blocks_are_not_resized_under_the_gpu(gpu: _core.ProbedFences, mapped: bool) -> None:
    plain = native(bigmem.Recycle(), "never", fences=gpu)
    if mapped:
        plain = native(bigmem.Deferred(), "never", fences=gpu, mapping_per_block=True)
    units = native(bigmem.Recycle(), "auto", table=_core.ProbedPages(True, granularity=UNIT))
    for allocator in (plain, units, pinned(gpu)):
        block = allocator.allocate(8 * MIB)
        for nbytes in (4 * MIB, 9 * MIB, 8 * MIB - 5000):
            assert not _core.resize_block(block, nbytes)
        assert block.nbytes == 8 * MIB


@pytest.mark.parametrize("release", ["inline", "deferred"])
def test_mappings_of_their_own_wait_for_the_gpu(gpu: _core.ProbedFences, release: str) -> None:
    table = _core.ProbedPages(pinned=True)
    allocator = native(POLICIES[release], "never", mapping_per_block=True, table=table, fences=gpu)
    block = allocator.allocate(3 * MIB)
    assert gpu.attach(block.address)
    del block
    time.sleep(0.03)
    assert table.calls("decommit")[0] == table.calls("unreserve")[0] == 0
    gpu.finish_all()
    assert allocator.flush(10)
    wait_for(lambda: table.calls("unreserve") == (1, 3 * MIB))


def test_pinned_memory_is_never_cleared_by_giving_it_back(gpu: _core.ProbedFences) -> None:
    verdict = _core.clearing_verdict()
    table = _core.ProbedPages(pinned=True)
    arena = native(bigmem.Recycle(), "always", table=table)
    block = arena.allocate(8 * MIB)
    np.frombuffer(memoryview(block), np.uint8)[:] = 7
    del block
    try:
        _core.clearing_verdict(1)
        again = arena.allocate(8 * MIB, zeroed=True)
    finally:
        _core.clearing_verdict(verdict)
    assert arena.stats().warm_hits == 1
    assert not np.frombuffer(memoryview(again), np.uint8).any()
    assert table.calls("decommit") == (0, 0)


def test_threads_that_allocate_attach_and_release_at_once(gpu: _core.ProbedFences) -> None:
    """Every byte is where its owner left it for as long as the GPU may look at it."""
    arenas = [pinned(gpu, POLICIES[kind]) for kind in KINDS]
    stop = threading.Event()
    wrong: list[str] = []

    def use(seed: int) -> None:
        rng = np.random.default_rng(seed)
        views: list[tuple[int, np.ndarray[Any, Any]]] = []
        for step in range(250):
            arena = arenas[step % len(arenas)]
            block = arena.allocate(int(rng.choice([100, 4096, 70_000, MIB, 3 * MIB])))
            array = np.frombuffer(memoryview(block), np.uint8)
            value = step % 255 + 1
            array[:] = value
            if rng.random() < 0.5 and gpu.attach(block.address) is None:
                wrong.append("a live block was not found")
            views.append((value, array))
            del block, array
            if len(views) > 10:
                value, array = views.pop(int(rng.integers(len(views))))
                if (array != value).any():
                    wrong.append("a live block was reused")
                del array

    def work() -> None:
        while not stop.is_set():
            gpu.finish_all()
            for arena in arenas:
                arena.flush(0)
            stop.wait(0.001)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    processor = threading.Thread(target=work)
    for thread in (*threads, processor):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    processor.join()
    assert not wrong
    for arena in arenas:
        finish(gpu, arena)
    assert (gpu.open(), gpu.mistakes()) == (0, 0)
