"""Blocks that grow by moving their pages to another address."""

import errno
import threading
from collections.abc import Callable

import pytest
from kernel import HUGE, MIB, ORDINARY, PAGE, SECRET, SMALL, Range, areas, bytes_at, flags
from patterns import PATTERN, holds_pattern, page_faults, patterned, view
from waiting import wait_for

import bigmem
from bigmem import _core, osmem
from bigmem._core import resize_block
from bigmem.native import NativeAllocator

Native = Callable[..., NativeAllocator]
MakeRange = Callable[..., Range]
Run = Callable[..., str]
HUGE_PAGE = 2 * MIB

needs_huge_pages = pytest.mark.skipif(
    not osmem.huge_pages_work(), reason="this system gives no transparent huge pages"
)


def in_the_way(
    allocator: bigmem.Allocator, nbytes: int, alignment: int = 64
) -> tuple[bigmem.Block, bigmem.Block]:
    """A block that cannot grow where it is, and the one behind it."""
    block = patterned(allocator, nbytes, alignment)
    neighbour = patterned(allocator, HUGE_PAGE)
    assert block.address + nbytes <= neighbour.address < block.address + nbytes + HUGE_PAGE
    return block, neighbour


@pytest.mark.parametrize("huge", ["never", pytest.param("always", marks=needs_huge_pages)])
@pytest.mark.parametrize("policy", ["inline", "deferred", "recycle"])
def test_what_is_in_the_way_is_no_reason_to_copy(native: Native, policy: str, huge: str) -> None:
    allocator = native(getattr(bigmem, policy.title())(), huge)
    block, neighbour = in_the_way(allocator, 24 * MIB)
    address = block.address
    page = PAGE if huge == "never" else HUGE_PAGE
    before = page_faults()
    assert resize_block(block, 36 * MIB)
    assert view(block)[: 24 * MIB].max() == 250
    assert page_faults() - before < 200
    view(block)[24 * MIB :] = PATTERN[24 * MIB : 36 * MIB]
    assert 12 * MIB // page <= page_faults() - before < 12 * MIB // page + 200
    assert block.address != address
    assert (block.address - address) % HUGE_PAGE == 0
    if huge == "always":
        assert sum(a["AnonHugePages"] for a in areas(block.address, 36 * MIB)) >= 36 * MIB
    assert holds_pattern(block, 36 * MIB)
    assert holds_pattern(neighbour, HUGE_PAGE)
    stats = allocator.stats()
    assert stats.live == stats.resident == stats.peak_live == stats.peak_resident == 38 * MIB
    assert (stats.allocations, stats.releases) == (2, 0)
    # There it has room to grow.
    address = block.address
    assert resize_block(block, 60 * MIB)
    assert block.address == address
    assert holds_pattern(block, 36 * MIB)


def test_a_small_block_in_the_way_stays(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "never")
    block, _ = in_the_way(allocator, 15 * MIB)
    assert not resize_block(block, 16 * MIB)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("huge", ["never", "always"])
def test_a_refused_move_leaves_all_as_it_was(
    native: Native, huge: str, strict: bool, mapped: bool
) -> None:
    table = _core.ProbedPages(strict)
    budget = bigmem.Budget(64 * MIB)
    allocator = native(
        bigmem.Deferred(), huge, table=table, mapping_per_block=mapped, budget=budget
    )
    block = patterned(allocator, 17 * MIB)
    neighbour = patterned(allocator, HUGE_PAGE)
    before = allocator.stats()
    address = block.address
    table.refuse("remap", errno.ENOMEM)
    for nbytes in (18 * MIB + 1, 36 * MIB):
        assert not resize_block(block, nbytes)
        assert (block.address, block.nbytes) == (address, 17 * MIB)
        after = allocator.stats()
        assert (after.live, after.warm, after.resident, after.clean) == (
            before.live, before.warm, before.resident, before.clean
        )  # fmt: skip
        assert budget.used == after.resident
    table.refuse("remap", 0)
    assert resize_block(block, 36 * MIB)
    assert holds_pattern(block, 17 * MIB)
    view(block)[:] = PATTERN[: 36 * MIB]
    assert budget.used == allocator.stats().resident == allocator.stats().live == 38 * MIB
    block.release()
    neighbour.release()
    assert allocator.flush(20)
    assert budget.used == allocator.stats().resident == 0


def test_a_budget_pays_for_what_is_added(native: Native) -> None:
    budget = bigmem.Budget(38 * MIB)
    allocator = native(bigmem.Recycle(), "never", budget=budget)
    block, neighbour = in_the_way(allocator, 24 * MIB)
    idle = patterned(allocator, 8 * MIB)
    idle.release()
    assert not resize_block(block, 36 * MIB + 1)
    assert (budget.used, holds_pattern(block, 24 * MIB)) == (26 * MIB, True)
    assert resize_block(block, 36 * MIB)
    assert budget.used == allocator.stats().live == 38 * MIB
    assert holds_pattern(neighbour, HUGE_PAGE)


def test_a_huge_page_that_two_blocks_share_does_not_move(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "always")
    block = patterned(allocator, 17 * MIB)
    small = patterned(allocator, MIB // 2)
    assert small.address == block.address + block.nbytes
    assert not resize_block(block, 20 * MIB)
    small.release()
    small = patterned(allocator, 2 * MIB)
    assert resize_block(block, 21 * MIB)
    assert (allocator.stats().live, allocator.stats().warm) == (23 * MIB, MIB)
    assert holds_pattern(block, 17 * MIB)


def test_the_regions_of_blocks_that_moved_go_back(native: Native) -> None:
    table = _core.ProbedPages()
    allocator = native(bigmem.Recycle(), "never", table=table)
    reserved = table.calls("reserve")[0]
    mapped = len(areas(0, 1 << 63))
    for _ in range(5):
        block, neighbour = in_the_way(allocator, 24 * MIB)
        assert resize_block(block, 36 * MIB)
        block.release()
        neighbour.release()
        allocator.trim()
        assert allocator.stats().resident == 0
    assert table.calls("remap")[0] == 5
    assert table.calls("unreserve")[0] >= 5
    assert table.calls("reserve")[0] - reserved <= 5
    assert allocator.stats().clean > 0
    assert len(areas(0, 1 << 63)) - mapped < 5


def test_what_a_block_that_moves_leaves_behind_goes_back(native: Native) -> None:
    table = _core.ProbedPages()
    allocator = native(bigmem.Recycle(), "never", table=table)
    first = patterned(allocator, PAGE)
    blocks = [patterned(allocator, 16 * MIB) for _ in range(6)]
    allocator.allocate(PAGE).release()
    mapped = len(areas(0, 1 << 63))
    # Every one moves, the last ones from a region in which nothing else is left.
    first.release()
    allocator.trim()
    for block in blocks[:-1]:
        assert resize_block(block, 17 * MIB)
        assert holds_pattern(block, 16 * MIB)
    assert table.calls("remap")[0] == 5
    assert table.calls("unreserve")[0] >= 1
    assert len(areas(0, 1 << 63)) - mapped <= 7


def test_regions_of_their_own_are_bounded(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "never")
    held = []
    moved = 0
    before = len(areas(0, 1 << 63))
    for _ in range(300):
        block = allocator.allocate(16 * MIB)
        neighbour = allocator.allocate(16 * MIB - PAGE)
        held += [block, neighbour]
        address = block.address
        if not resize_block(block, 17 * MIB):
            assert (block.address, block.nbytes) == (address, 16 * MIB)
        else:
            moved += block.address != address
    assert 30 < moved < 256
    assert len(areas(0, 1 << 63)) - before < 3 * 256
    held.clear()
    allocator.trim()


@pytest.mark.parametrize("huge", ["never", "always"])
@pytest.mark.parametrize("policy", ["inline", "deferred"])
def test_a_mapping_grows_without_a_copy(native: Native, policy: str, huge: str) -> None:
    table = _core.ProbedPages()
    allocator = native(getattr(bigmem, policy.title())(), huge, mapping_per_block=True, table=table)
    block = patterned(allocator, 16 * MIB)
    before = page_faults()
    assert resize_block(block, 24 * MIB)
    assert view(block)[: 16 * MIB].max() == 250
    assert page_faults() - before < 200
    assert holds_pattern(block, 16 * MIB)
    view(block)[:] = PATTERN[: 24 * MIB]
    assert allocator.stats().live == allocator.stats().resident == 24 * MIB
    assert allocator.stats().clean == 0
    assert resize_block(block, 4 * MIB)
    # What was let go may still be there: that is in nobody's way.
    assert resize_block(block, 30 * MIB)
    assert holds_pattern(block, 4 * MIB)
    block.release()
    assert allocator.flush(20)
    assert table.calls("unreserve")[1] == (20 + 30) * MIB
    assert allocator.stats().resident == 0


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("page", [SMALL, HUGE])
@pytest.mark.parametrize("options", [ORDINARY, SECRET])
def test_what_a_range_was_told_goes_with_it(
    strict: bool, page: int, options: tuple[int, int, bool]
) -> None:
    table = _core.ProbedPages(strict, _core.AnonymousPages(*options))
    address = table.reserve(12 * MIB, 2 * MIB, page)
    assert table.commit(address, 12 * MIB, page) == 0
    bytes_at(address, 12 * MIB)[:] = PATTERN[: 12 * MIB]
    known = flags(address, 12 * MIB)
    # From the middle of a mapping: what lies on either side stays.
    middle, kept = address + 4 * MIB + PAGE, 2 * MIB
    moved = table.remap(middle, kept, 6 * MIB, PAGE)
    assert (moved - middle) % HUGE_PAGE == 0
    assert (bytes_at(moved, kept) == PATTERN[middle - address :][:kept]).all()
    assert not bytes_at(moved + kept, 6 * MIB - kept).any()
    bytes_at(moved, 6 * MIB)[:] = 1
    assert flags(moved, 6 * MIB) == known
    assert (bytes_at(address, 4 * MIB) == PATTERN[: 4 * MIB]).all()
    # Whoever is there now has come later.
    assert all(middle <= a["begin"] and a["end"] <= middle + kept for a in areas(middle, kept))
    for begin, end in (
        (address, middle),
        (middle + kept, address + 12 * MIB),
        (moved, moved + 6 * MIB),
    ):
        assert table.unreserve(begin, end - begin) == 0


@pytest.mark.parametrize("alignment", [PAGE, 2 * MIB, 64 * MIB])
def test_the_address_stays_the_same_modulo_its_alignment(alignment: int) -> None:
    table = _core.ProbedPages()
    address = table.reserve(4 * MIB, alignment, SMALL)
    moved = table.remap(address, 4 * MIB, 8 * MIB, alignment)
    assert (moved - address) % max(alignment, HUGE_PAGE) == 0
    assert table.unreserve(moved, 8 * MIB) == 0


def test_what_its_user_locked_is_not_populated_where_it_moves(run: Run) -> None:
    run(
        """
        from bigmem._core import resize_block
        allocator = bigmem.MappedAllocator(pages=bigmem.AnonymousPages(huge="never"))
        block = allocator.allocate(MIB)
        assert LIBC.mlock(ctypes.c_void_p(block.address), ctypes.c_size_t(MIB)) == 0
        before = osmem.resident_bytes()
        assert resize_block(block, 40 * MIB)
        assert osmem.resident_bytes() - before < 8 * MIB
        """
    )


def test_several_mappings_are_left_alone(run: Run) -> None:
    run(
        """
        from bigmem._core import resize_block
        allocator = bigmem.MappedAllocator()
        block = allocator.allocate(16 * MIB)
        bytes_at(block.address, 16 * MIB)[:] = 5
        # Kept out of core dumps by its user, in part.
        assert LIBC.madvise(ctypes.c_void_p(block.address), ctypes.c_size_t(MIB), 16) == 0
        mapped = len(areas(0, 1 << 63))
        for _ in range(20):
            assert not resize_block(block, 32 * MIB)
        assert len(areas(0, 1 << 63)) <= mapped + 1
        assert (bytes_at(block.address, 16 * MIB) == 5).all()
        """
    )


def test_a_limit_on_the_address_range_is_kept(run: Run) -> None:
    run(
        """
        from bigmem._core import resize_block
        for allocator in (
            bigmem.MappedAllocator(),
            bigmem.ArenaAllocator(pages=bigmem.AnonymousPages(huge="never"), reserve="64MiB"),
        ):
            block, neighbour = allocator.allocate(32 * MIB), allocator.allocate(8 * MIB)
            bytes_at(block.address, 32 * MIB)[:] = 5
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            used = int(open("/proc/self/statm").read().split()[0]) * PAGE
            resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MIB, hard))
            assert not resize_block(block, 200 * MIB)
            assert (bytes_at(block.address, 32 * MIB) == 5).all()
            resource.setrlimit(resource.RLIMIT_AS, (used + 512 * MIB, hard))
            assert resize_block(block, 200 * MIB)
            assert (bytes_at(block.address, 32 * MIB) == 5).all()
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        """
    )


def test_a_fork_while_a_block_moves_leaves_the_child_what_is_its(run_prepared: Run) -> None:
    run_prepared(
        """
        from bigmem._core import resize_block
        warnings.simplefilter("ignore", DeprecationWarning)
        MIB = 1 << 20
        for huge in ("never", "always"):
            table = _core.ProbedPages()
            budget = bigmem.Budget(128 * MIB)
            allocator = native(bigmem.Recycle(), table, huge, budget=budget)
            block, neighbour = allocator.allocate(17 * MIB), allocator.allocate(2 * MIB)
            np.frombuffer(memoryview(block), np.uint8)[:] = 7
            table.delay("remap", 1.0)
            moved = []
            thread = threading.Thread(target=lambda: moved.append(resize_block(block, 36 * MIB)))
            thread.start()
            wait_for(lambda: table.calls("remap")[0] == 1)
            child = os.fork()
            if child == 0:
                try:
                    # The block is lost in the hands of a thread that is not here.
                    assert budget.used == allocator.stats().resident < 24 * MIB
                    assert not resize_block(block, 1)
                    mine = fill(allocator, 32 * MIB)
                    del mine
                    assert allocator.flush(20)
                    allocator.trim()
                    assert budget.used == allocator.stats().resident < 24 * MIB
                    os._exit(0)
                except BaseException as error:
                    print(repr(error), file=sys.stderr)
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            thread.join()
            assert moved == [True]
            assert (np.frombuffer(memoryview(block), np.uint8)[: 17 * MIB] == 7).all()
            assert budget.used == allocator.stats().resident == 38 * MIB
            block.release(), neighbour.release()
            allocator.flush(20), allocator.trim()
            assert budget.used == allocator.stats().resident == 0
        """
    )


def test_releases_and_allocations_go_on_while_a_block_moves(native: Native) -> None:
    table = _core.ProbedPages()
    allocator = native(bigmem.Recycle(), "never", table=table)
    block, neighbour = in_the_way(allocator, 24 * MIB)
    table.delay("remap", 2.0)
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(resize_block(block, 36 * MIB)))
    thread.start()
    wait_for(lambda: table.calls("remap")[0] == 1)
    for nbytes in (MIB, HUGE_PAGE, 8 * MIB):
        other = patterned(allocator, nbytes)
        assert holds_pattern(other, nbytes)
        other.release()
    neighbour.release()
    assert not results
    thread.join()
    assert results == [True]
    assert holds_pattern(block, 24 * MIB)
