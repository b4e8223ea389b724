"""Blocks that grow and shrink without a copy, or stay exactly as they are."""

import gc
import random
import threading
from collections.abc import Callable, Iterator

import pytest
from conftest import MAKERS, RESIZABLE_MAKERS
from kernel import MIB, PAGE, bytes_at, resident
from patterns import PATTERN, holds_pattern, page_faults, patterned, view
from stress import make_allocators
from waiting import wait_for

import bigmem
from bigmem import _core
from bigmem._core import resize_block
from bigmem.native import NativeAllocator

Native = Callable[..., NativeAllocator]
Run = Callable[..., str]
ENOMEM = 12


@pytest.fixture(params=["system", *RESIZABLE_MAKERS])
def resizable(request: pytest.FixtureRequest) -> Iterator[bigmem.Allocator]:
    made = MAKERS[request.param]()
    yield made
    made.close()


def test_the_contents_up_to_the_smaller_size_stay(resizable: bigmem.Allocator) -> None:
    rng = random.Random(1)
    blocks = [patterned(resizable, nbytes) for nbytes in (0, 5000, 3 * MIB, 5 * MIB + 13)]
    resized = 0
    for _ in range(60):
        block = rng.choice(blocks)
        before = (block.address, block.nbytes)
        wanted = rng.choice(
            [0, 1, 4096, before[1] // 2, before[1] + 1, int(9 * MIB ** rng.random())]
        )
        kept = min(before[1], wanted)
        if resize_block(block, wanted):
            resized += 1
            assert block.nbytes == len(block) == memoryview(block).nbytes == wanted
            assert block.address % 64 == 0
            assert holds_pattern(block, kept)
            if wanted > kept:
                view(block)[kept:] = PATTERN[kept:wanted]
        else:
            assert (block.address, block.nbytes) == before
        for other in blocks:
            assert holds_pattern(other, other.nbytes)
    assert resized > 5
    stats = resizable.stats()
    assert (stats.allocations, stats.releases) == (4, 0)
    assert stats.peak_live >= stats.live >= sum(block.nbytes for block in blocks)
    del block, other, blocks
    assert resizable.flush(20)
    resizable.trim()
    stats = resizable.stats()
    assert (stats.allocations, stats.releases, stats.resident) == (4, 4, 0)


@pytest.mark.parametrize("alignment", [1, 64, 4096, 2 * MIB, 16 * MIB])
def test_the_alignment_stays(resizable: bigmem.Allocator, alignment: int) -> None:
    block = patterned(resizable, 3 * MIB, alignment)
    others = []
    for nbytes in (5 * MIB, 4 * MIB + 1, 20 * MIB, 21 * MIB):
        others.append(resizable.allocate(PAGE, alignment=alignment))
        resize_block(block, nbytes)
        assert block.address % alignment == 0
        assert holds_pattern(block, 3 * MIB)


@pytest.mark.parametrize("policy", ["inline", "deferred", "recycle"])
def test_growing_in_place_faults_in_the_new_part_alone(native: Native, policy: str) -> None:
    allocator = native(getattr(bigmem, policy.title())(), "never")
    block = patterned(allocator, 16 * MIB)
    address = block.address
    grown = 8 * MIB // PAGE
    before = page_faults()
    assert resize_block(block, 24 * MIB)
    view(block)[:] = 7
    assert grown <= page_faults() - before < grown + 200
    assert block.address == address
    stats = allocator.stats()
    assert stats.live == stats.peak_live == stats.resident == 24 * MIB


def test_what_was_let_go_is_taken_back_warm(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "never")
    block = patterned(allocator, 24 * MIB)
    before = page_faults()
    for _ in range(10):
        assert resize_block(block, 8 * MIB + 1)
        assert allocator.stats().warm == 16 * MIB - PAGE
        assert resize_block(block, 24 * MIB)
        view(block)[:] = 7
    assert page_faults() - before < 1000
    assert allocator.stats().resident == allocator.stats().peak_resident == 24 * MIB


@pytest.mark.parametrize("name", RESIZABLE_MAKERS)
def test_what_is_let_go_goes_where_a_release_sends_it(name: str) -> None:
    allocator = MAKERS[name]()
    block = patterned(allocator, 16 * MIB)
    address = block.address
    assert resize_block(block, 6 * MIB)
    assert block.address == address
    assert allocator.stats().live == 6 * MIB
    assert allocator.flush(20)
    allocator.trim()
    stats = allocator.stats()
    assert stats.resident == stats.live == 6 * MIB
    assert stats.reclaimed == 10 * MIB
    assert holds_pattern(block, 6 * MIB)
    if stats.clean:  # or it is no part of any mapping
        assert not any(resident(address + 6 * MIB, 10 * MIB))


def test_inline_pays_at_once(native: Native) -> None:
    for mapped in (False, True):
        allocator = native(bigmem.Inline(), "never", mapping_per_block=mapped)
        block = patterned(allocator, 16 * MIB)
        assert resize_block(block, 6 * MIB)
        assert allocator.stats().resident == 6 * MIB


def test_no_part_of_a_huge_page_goes_back(native: Native) -> None:
    for mapped in (False, True):
        table = _core.ProbedPages()
        allocator = native(bigmem.Inline(), "always", table=table, mapping_per_block=mapped)
        block = patterned(allocator, 9 * MIB)
        assert resize_block(block, 5 * MIB)
        assert table.calls("unreserve" if mapped else "decommit")[1] == (3 if mapped else 4) * MIB
        stats = allocator.stats()
        assert stats.resident == 6 * MIB
        # A huge page is too much for a small block: that is copied.
        assert not resize_block(block, MIB)
        assert resize_block(block, 2 * MIB)


def test_what_is_left_of_a_huge_page_is_grown_into_and_left_again(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "always")
    block = patterned(allocator, 4 * MIB + 1)
    assert allocator.stats().warm == 2 * MIB - PAGE
    assert resize_block(block, 5 * MIB)
    assert (allocator.stats().live, allocator.stats().warm) == (5 * MIB, MIB)
    small = patterned(allocator, MIB // 2)
    assert small.address == block.address + 5 * MIB
    assert resize_block(small, MIB)
    assert not resize_block(small, MIB + 1)
    assert not resize_block(block, 5 * MIB + 1)
    assert resize_block(small, 1)
    assert resize_block(block, 5 * MIB)
    small.release()
    assert resize_block(block, 7 * MIB)
    assert (allocator.stats().live, allocator.stats().warm) == (7 * MIB, MIB)
    assert holds_pattern(block, 4 * MIB + 1)


def test_a_block_that_huge_pages_suit_takes_no_fresh_small_ones(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "always")
    block = patterned(allocator, MIB)
    assert resize_block(block, 2 * MIB - 1)
    assert not resize_block(block, 4 * MIB)
    neighbours = [patterned(allocator, MIB) for _ in range(4)]
    for neighbour in neighbours:
        neighbour.release()
    assert resize_block(block, 4 * MIB)
    assert (allocator.stats().live, allocator.stats().warm) == (4 * MIB, 2 * MIB)
    assert not resize_block(block, 7 * MIB)
    assert holds_pattern(block, MIB)


def test_what_is_in_use_is_in_the_way(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "never")
    block, neighbour = patterned(allocator, MIB), patterned(allocator, MIB)
    assert neighbour.address == block.address + MIB
    before = allocator.stats()
    assert not resize_block(block, MIB + 1)
    assert allocator.stats().live == before.live
    neighbour.release()
    assert resize_block(block, MIB + 1)


def test_a_budget_bounds_growth_to_the_page(native: Native) -> None:
    budget = bigmem.Budget(16 * MIB)
    allocator = native(bigmem.Recycle(), "never", budget=budget)
    block = patterned(allocator, 8 * MIB)
    assert not resize_block(block, 16 * MIB + 1)
    assert (budget.used, allocator.stats().live) == (8 * MIB, 8 * MIB)
    assert resize_block(block, 16 * MIB)
    assert (budget.used, allocator.stats().live) == (16 * MIB, 16 * MIB)
    assert not resize_block(block, 16 * MIB + 1)
    assert resize_block(block, 12 * MIB)
    assert budget.used == 16 * MIB  # 4 MiB are warm
    block.release()
    allocator.trim()
    assert budget.used == 0


def test_idle_memory_makes_room_in_the_budget(native: Native) -> None:
    for policy in (bigmem.Recycle(), bigmem.Deferred()):
        budget = bigmem.Budget(16 * MIB)
        allocator = native(policy, "never", budget=budget)
        idle, block = patterned(allocator, 8 * MIB), patterned(allocator, 8 * MIB)
        idle.release()
        address = block.address
        assert resize_block(block, 12 * MIB)
        assert (block.address, budget.used <= 16 * MIB) == (address, True)
        assert holds_pattern(block, 8 * MIB)


def test_a_budget_pays_for_the_rest_of_the_last_huge_page(native: Native) -> None:
    budget = bigmem.Budget(9 * MIB)
    allocator = native(bigmem.Recycle(), "always", budget=budget)
    block = patterned(allocator, 4 * MIB)
    assert resize_block(block, 5 * MIB)
    assert budget.used == 6 * MIB
    assert resize_block(block, 8 * MIB)
    assert not resize_block(block, 8 * MIB + 1)
    assert budget.used == allocator.stats().resident == 8 * MIB


def test_what_the_system_refuses_to_commit_leaves_all_as_it_was(native: Native) -> None:
    for policy in (bigmem.Recycle(), bigmem.Deferred(), bigmem.Inline()):
        table = _core.ProbedPages(True)
        budget = bigmem.Budget(64 * MIB)
        allocator = native(policy, "never", table=table, budget=budget)
        block = patterned(allocator, 8 * MIB)
        table.refuse("commit", ENOMEM)
        before = (block.address, block.nbytes)
        assert not resize_block(block, 12 * MIB)
        assert (block.address, block.nbytes) == before
        assert budget.used == allocator.stats().resident == allocator.stats().live == 8 * MIB
        table.refuse("commit", 0)
        assert resize_block(block, 12 * MIB)
        view(block)[:] = 1
        assert budget.used == allocator.stats().live == 12 * MIB


def test_a_closed_allocator_takes_nothing_more_for_its_blocks(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "never")
    block = patterned(allocator, 8 * MIB - 5)
    allocator.close()
    assert resize_block(block, 8 * MIB)
    assert not resize_block(block, 8 * MIB + 1)
    assert resize_block(block, 2 * MIB)
    assert holds_pattern(block, 2 * MIB)
    wait_for(lambda: allocator.stats().resident == 2 * MIB)


def test_secrets_that_are_let_go_are_overwritten(native: Native) -> None:
    for policy in (bigmem.Recycle(), bigmem.Deferred(), bigmem.Inline()):
        for huge in ("never", "always"):
            table = _core.ProbedPages(False, _core.AnonymousPages(0, 0, True))
            allocator = native(policy, huge, wipe=True, table=table)
            block = patterned(allocator, 8 * MIB)
            address = block.address
            assert resize_block(block, 4 * MIB)
            assert allocator.flush(20)
            assert table.calls("wipe")[1] == 4 * MIB
            assert not bytes_at(address + 4 * MIB, 4 * MIB).any()
            assert resize_block(block, 8 * MIB)
            assert block.address == address
            assert not view(block)[4 * MIB :].any()
            assert holds_pattern(block, 4 * MIB)


def test_growth_beyond_the_bound_of_what_is_pending_helps(native: Native) -> None:
    # The worker is held up in a first reclaim, so that all the others wait.
    table = _core.ProbedPages()
    allocator = native(bigmem.Deferred(max_pending=16 * MIB), "never", table=table)
    held = [allocator.allocate(8 * MIB) for _ in range(4)]
    first, block = allocator.allocate(4 * MIB), allocator.allocate(MIB)
    table.delay("decommit", 2.0)
    first.release()
    wait_for(lambda: allocator.stats().reclaiming > 0)
    table.delay("decommit", 0.0)
    held.clear()
    assert allocator.stats().pending == 32 * MIB
    assert resize_block(block, 2 * MIB)
    assert allocator.stats().pending <= 16 * MIB
    assert allocator.stats().waits == 1


def test_blocks_that_others_count_on_stay_as_they_are(native: Native) -> None:
    class Event:
        done = False

    arena = native(bigmem.Recycle(), "never")
    viewed = patterned(arena, MIB)
    views = [memoryview(viewed), memoryview(viewed)]
    assert not resize_block(viewed, 2 * MIB)
    views.pop().release()
    assert resize_block(viewed, 2 * MIB)  # whoever asks knows of one

    fenced = patterned(arena, MIB)
    event = Event()
    fenced.fence(event)
    assert not resize_block(fenced, 10)
    event.done = True

    released = patterned(arena, MIB)
    released.release()
    assert not resize_block(released, 10)

    base = patterned(arena, MIB)
    above = bigmem.Block(memoryview(base), allocator=arena)
    assert not resize_block(base, 10)
    assert not resize_block(above, 10)
    above.release()
    assert resize_block(base, 10)


@pytest.mark.parametrize(
    "name", [name for name in MAKERS if name != "system" and name not in RESIZABLE_MAKERS]
)
def test_other_allocators_blocks_are_left_alone(name: str) -> None:
    allocator = MAKERS[name]()
    block = patterned(allocator, MIB)
    for nbytes in (10, MIB, 2 * MIB):
        assert not resize_block(block, nbytes)
    assert holds_pattern(block, MIB)


def test_senseless_requests() -> None:
    block = bigmem.SystemAllocator().allocate(10)
    with pytest.raises(TypeError, match="expected a Block, not bytearray"):
        resize_block(bytearray(10), 20)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no block has -1 bytes"):
        resize_block(block, -1)
    with pytest.raises(OverflowError):
        resize_block(block, 1 << 70)


@pytest.mark.parametrize("nbytes", [1 << 46, 1 << 60, (1 << 63) - 1])
def test_absurd_growth_is_refused(resizable: bigmem.Allocator, nbytes: int) -> None:
    for before in (100, 3 * MIB):
        block = patterned(resizable, before)
        assert not resize_block(block, nbytes)
        assert (block.nbytes, resizable.stats().resident >= before) == (before, True)
        assert holds_pattern(block, before)


def test_other_threads_go_on_while_the_system_works(native: Native) -> None:
    table = _core.ProbedPages(True)
    allocator = native(bigmem.Recycle(), "never", table=table)
    other, block = patterned(allocator, MIB), patterned(allocator, MIB)
    calls = table.calls("commit")[0]
    table.delay("commit", 2.0)
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(resize_block(block, 2 * MIB)))
    thread.start()
    wait_for(lambda: table.calls("commit")[0] > calls)
    # The block is in that thread's hands meanwhile.
    with pytest.raises(bigmem.InvalidRelease, match="is being resized"):
        block.release()
    with pytest.raises(BufferError, match="is being resized"):
        memoryview(block)
    assert not resize_block(block, 10)
    assert any(live is block for live in _core.live_blocks())
    other.release()
    assert allocator.stats().warm == MIB
    assert not results
    thread.join()
    assert results == [True]
    assert holds_pattern(block, MIB)
    block.release()


def test_both_sides_of_a_fork_resize_what_they_have(run_prepared: Run) -> None:
    run_prepared(
        """
        from bigmem._core import resize_block
        MIB = 1 << 20

        def view(block):
            return np.frombuffer(memoryview(block), np.uint8)

        for policy in (bigmem.Inline(), bigmem.Deferred(), bigmem.Recycle()):
            for mapped in (False, True):
                if mapped and isinstance(policy, bigmem.Recycle):
                    continue
                allocator = native(policy, mapped=mapped)
                block = allocator.allocate(8 * MIB)
                view(block)[:] = 42
                child = os.fork()
                try:
                    value = 1 if child == 0 else 2
                    for nbytes in (4 * MIB, 6 * MIB, 3 * MIB, 9 * MIB):
                        kept = min(block.nbytes, nbytes)
                        if resize_block(block, nbytes):
                            assert block.nbytes == nbytes
                        else:
                            assert nbytes > block.nbytes == kept
                        assert set(np.unique(view(block)[:kept])) <= {42, value}
                        assert (view(block)[: 3 * MIB] == 42).all()
                        view(block)[kept:] = value
                    # What the other side has is not recycled.
                    assert allocator.stats().warm == 0
                    block.release()
                    assert allocator.flush(20)
                    allocator.trim()
                    assert allocator.stats().resident == 0
                except BaseException as error:
                    if child == 0:
                        print(repr(error), file=sys.stderr)
                        os._exit(1)
                    raise
                if child == 0:
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        """
    )


def test_many_threads_resize_at_once() -> None:
    budget = bigmem.Budget(64 * MIB, timeout=0.05)
    allocators = make_allocators(budget)
    errors: list[BaseException] = []
    resized = [0] * 4

    def stamped(rng: random.Random) -> tuple[bigmem.Block, int]:
        nbytes, stamp = int(4 * MIB ** rng.random()), rng.randrange(1, 256)
        try:
            block = rng.choice(allocators).allocate(nbytes)
        except bigmem.OutOfMemory:
            block = allocators[-1].allocate(nbytes)
        view(block)[:] = stamp
        return block, stamp

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            blocks: list[tuple[bigmem.Block, int]] = []
            for _ in range(400):
                if len(blocks) < 6:
                    blocks.append(stamped(rng))
                place = rng.randrange(len(blocks))
                block, stamp = blocks[place]
                kept = block.nbytes
                if resize_block(block, int(4 * MIB ** rng.random())):
                    resized[number] += 1
                    kept = min(kept, block.nbytes)
                    assert (view(block)[:kept] == stamp).all()
                    view(block)[kept:] = stamp
                if rng.random() < 0.3:
                    assert (view(block) == stamp).all()
                    del blocks[place]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert min(resized) > 100
    gc.collect()
    for allocator in allocators:
        assert allocator.flush(20)
        allocator.trim()
        assert allocator.stats().resident == 0
    assert budget.used == 0
