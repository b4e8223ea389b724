"""What the kernel is asked of memory, and what happens where it refuses."""

import ctypes
import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel import (
    DONTNEED,
    FREE,
    HUGE,
    INTERLEAVE,
    LIBC,
    LOCAL,
    MIB,
    NODE,
    NUMBERS,
    ORDINARY,
    PAGE,
    PLAIN,
    SECRET,
    SMALL,
    UNSET,
    Range,
    areas,
    flags,
    policy,
    resident,
)

import bigmem
from bigmem import _core, osmem

Run = Callable[..., str]
MakeRange = Callable[..., Range]

needs_huge_pages = pytest.mark.skipif(
    osmem.transparent_huge_pages() == "never", reason="this system has no transparent huge pages"
)
needs_nodes = pytest.mark.skipif(not osmem.numa_nodes(), reason="this kernel knows no NUMA nodes")
needs_numbers = pytest.mark.skipif(not NUMBERS, reason="system calls of this machine unknown here")
both_kinds = pytest.mark.parametrize("strict", [False, True])


# --- what a reservation is ---


@both_kinds
@pytest.mark.parametrize("secret", [False, True])
def test_a_reservation_is_what_was_asked_for(
    make_range: MakeRange, strict: bool, secret: bool
) -> None:
    for page, hint in ((PLAIN, set()), (SMALL, {"nh"}), (HUGE, {"hg"})):
        if page == HUGE and osmem.transparent_huge_pages() == "never":
            continue
        r = make_range(4 * MIB, page, strict=strict, options=(UNSET, 0, secret))
        expected = hint | ({"dd", "wf"} if secret else set())
        assert flags(r.address, r.nbytes) == expected
        assert r.address % (2 * MIB) == 0
        r.bytes[:] = 7
        assert r.decommit() == (0, False)
        r.recommit()
        assert not r.bytes.any()
        assert flags(r.address, r.nbytes) == expected


def test_a_strict_reservation_is_inaccessible_until_committed() -> None:
    table = _core.ProbedPages(True)
    address = table.reserve(MIB, PAGE, SMALL)
    assert "wr" not in areas(address, MIB)[0]["flags"]
    assert table.commit(address, MIB, SMALL) == 0
    assert "wr" in areas(address, MIB)[0]["flags"]
    assert table.decommit(address, MIB, SMALL, DONTNEED) == (0, False)
    assert "wr" not in areas(address, MIB)[0]["flags"]
    assert table.unreserve(address, MIB) == 0
    assert areas(address, MIB) == []


def test_every_operation_is_counted_and_can_be_refused() -> None:
    table = _core.ProbedPages(True)
    address = table.reserve(MIB, PAGE, SMALL)
    calls: dict[str, Callable[[], object]] = {
        "commit": lambda: table.commit(address, MIB, SMALL),
        "populate": lambda: table.populate(address, MIB),
        "wipe": lambda: table.wipe(address, MIB),
        "set_wiped_on_fork": lambda: table.set_wiped_on_fork(address, MIB, True),
        "decommit": lambda: table.decommit(address, MIB, SMALL, DONTNEED)[0],
        "unreserve": lambda: table.unreserve(address, MIB),
    }
    for name, call in calls.items():
        table.refuse(name, errno.EPERM)
        assert call() == errno.EPERM, name
        table.refuse(name, 0)
        assert call() == 0, name
        assert table.calls(name) == (2, 2 * MIB)
    table.refuse("reserve", errno.ENOMEM)
    with pytest.raises(OSError) as refusal:
        table.reserve(MIB, PAGE, SMALL)
    assert refusal.value.errno == errno.ENOMEM
    with pytest.raises(ValueError, match="no operation"):
        table.refuse("copy", 1)
    for nonsense in ((4, 0, False), (-1, 0, False), (NODE, 1024, False), (NODE, -1, False)):
        with pytest.raises(ValueError, match="no placement"):
            _core.AnonymousPages(*nonsense)


# --- NUMA ---


@needs_nodes
@both_kinds
def test_memory_is_placed_once_for_the_whole_reservation(
    make_range: MakeRange, strict: bool
) -> None:
    node = osmem.numa_nodes()[0]
    expected = {UNSET: "default", LOCAL: "local", NODE: f"prefer:{node}"}
    for numa, name in expected.items():
        r = make_range(8 * MIB, HUGE, strict=strict, options=(numa, node, False))
        assert policy(r.address) == name
        assert len(areas(r.address, r.nbytes)) == 1
    r = make_range(8 * MIB, strict=strict, options=(INTERLEAVE, 0, False))
    assert policy(r.address).startswith(f"interleave:{node}")


@needs_nodes
def test_allocators_place_their_memory() -> None:
    node = osmem.numa_nodes()[0]
    for numa, expected in (("interleave", "interleave:"), ("local", "local"), (node, "prefer:")):
        pages = bigmem.AnonymousPages(numa=numa)  # type: ignore[arg-type]
        for kind in (bigmem.ArenaAllocator, bigmem.MappedAllocator):
            block = kind(pages=pages).allocate(8 * MIB)
            assert policy(block.address).startswith(expected)


@needs_nodes
def test_a_node_that_does_not_exist_is_named_with_those_that_do() -> None:
    missing = max(osmem.numa_nodes()) + 1
    known = ", ".join(map(str, osmem.numa_nodes()))
    with pytest.raises(bigmem.BigmemError, match=f"no NUMA node {missing}.* has: {known}$"):
        bigmem.AnonymousPages(numa=missing)


def test_pages_refuse_nonsense() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"huge": "big"}, "huge is 'auto'"),
        ({"numa": "near"}, "numa is None"),
        ({"numa": True}, "numa is None"),
        ({"numa": 1.0}, "numa is None"),
        ({"numa": []}, "numa is None"),
        ({"numa": -1}, "no NUMA node -1"),
        ({"prefault": 1}, "prefault is True or False"),
    ]
    for choice, message in wrong:
        with pytest.raises(bigmem.BigmemError, match=message):
            bigmem.AnonymousPages(**choice)
    assert bigmem.AnonymousPages() == bigmem.AnonymousPages("auto", None, False)


@given(st.sets(st.integers(0, 40), min_size=1))
def test_lists_of_nodes_are_read_as_the_kernel_writes_them(nodes: set[int]) -> None:
    text, left = [], sorted(nodes)
    while left:
        run = [left.pop(0)]
        while left and left[0] == run[-1] + 1:
            run.append(left.pop(0))
        text.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path: ",".join(text) + "\n")
        assert osmem.numa_nodes() == tuple(sorted(nodes))


def test_without_nodes_any_number_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(osmem, "_NODES", Path("/nonexistent/online"))
    assert osmem.numa_nodes() == ()
    assert bigmem.AnonymousPages(numa=7).numa == 7


@needs_numbers
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_that_places_nothing_is_warned_of_once(run: Run, error: int) -> None:
    run(
        """
        refuse(NUMBERS["mbind"], int(sys.argv[1]))
        pages = bigmem.AnonymousPages(numa="interleave")
        for kind in (bigmem.ArenaAllocator, bigmem.MappedAllocator):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                allocator = kind(pages=pages)
                bigmem.zeros(8 * MIB, np.uint8, allocator=allocator)[:] = 1
            assert [w.category for w in caught] == [RuntimeWarning], caught
            assert "numa='interleave' has no effect" in str(caught[0].message)
            assert caught[0].filename == "<string>", caught[0].filename
        warnings.simplefilter("error")
        bigmem.ArenaAllocator().allocate(MIB)
        """,
        str(error),
    )


@needs_numbers
def test_a_node_that_the_process_may_not_use_is_an_error(run: Run) -> None:
    run(
        """
        pages = bigmem.AnonymousPages(numa=0)
        refuse(NUMBERS["mbind"], errno.EINVAL)
        try:
            bigmem.ArenaAllocator(pages=pages)
        except bigmem.BigmemError as refusal:
            assert "may not use the memory of NUMA node 0" in str(refusal)
        else:
            raise AssertionError("accepted")
        """
    )


# --- populating ---

POPULATE = """
for page in (SMALL, HUGE):
    table = _core.ProbedPages()
    address = table.reserve(8 * MIB, 2 * MIB, page)
    memory = bytes_at(address, 8 * MIB)
    memory[5] = 9
    memory[MIB + 4097] = 8
    assert not all(resident(address, 8 * MIB))
    assert table.populate(address, 8 * MIB) == 0
    assert all(resident(address, 8 * MIB))
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    memory[PAGE // 2 :: PAGE] = 1
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 20
    assert (memory[5], memory[MIB + 4097], int(memory.sum())) == (9, 8, 9 + 8 + 2048)
"""


def test_populated_memory_is_resident_and_unchanged(run: Run) -> None:
    run(POPULATE)


@needs_numbers
def test_an_older_kernel_populates_by_touching(run: Run) -> None:
    run('refuse(NUMBERS["madvise"], errno.EINVAL, 23)\n' + POPULATE)


def test_populating_says_what_went_wrong(make_range: MakeRange) -> None:
    r = make_range(8 * PAGE, options=ORDINARY)
    assert LIBC.munmap(ctypes.c_void_p(r.address + PAGE), PAGE) == 0
    assert r.table.populate(r.address, r.nbytes) == errno.ENOMEM


# --- memory that the user locked, or that the kernel will not take by advice ---


@both_kinds
@pytest.mark.parametrize("page", [SMALL, HUGE])
def test_locked_memory_goes_back(make_range: MakeRange, strict: bool, page: int) -> None:
    r = make_range(4 * MIB, page, strict=strict, options=SECRET)
    expected = flags(r.address, r.nbytes)
    r.bytes[:] = 3
    assert LIBC.mlock(ctypes.c_void_p(r.address + MIB), ctypes.c_size_t(MIB)) == 0
    assert sum(area["Locked"] for area in areas(r.address, r.nbytes)) >= MIB
    # A strict range is mapped afresh whatever it is.
    assert r.decommit() == (0, not strict)
    assert not any(resident(r.address, r.nbytes))
    r.recommit()
    assert flags(r.address, r.nbytes) == expected
    assert not r.bytes.any()


def test_locked_memory_becomes_lazy(make_range: MakeRange) -> None:
    r = make_range(MIB, options=ORDINARY)
    r.bytes[:] = 3
    assert LIBC.mlock(ctypes.c_void_p(r.address), ctypes.c_size_t(PAGE)) == 0
    assert r.decommit(FREE) == (0, True)
    # The kernel moves pages to its list of these in batches.
    assert sum(area["LazyFree"] for area in areas(r.address, r.nbytes)) > MIB // 2


def test_a_hole_in_a_range_is_mended(make_range: MakeRange) -> None:
    r = make_range(MIB, options=SECRET)
    r.bytes[:] = 3
    assert LIBC.munmap(ctypes.c_void_p(r.address + 8 * PAGE), PAGE) == 0
    assert r.decommit() == (0, True)
    assert flags(r.address, r.nbytes) == {"nh", "dd", "wf"}
    assert not r.bytes.any()


@needs_numbers
def test_where_advice_is_refused_untouched_memory_takes_its_place(run: Run) -> None:
    run(
        """
        table = _core.ProbedPages(False, _core.AnonymousPages(LOCAL, 0, True))
        refuse(NUMBERS["madvise"], errno.EINVAL, 4)
        for page in (SMALL, HUGE):
            address = table.reserve(8 * MIB, 2 * MIB, page)
            before = flags(address, 8 * MIB), policy(address)
            bytes_at(address, 8 * MIB)[:] = 1
            assert table.decommit(address + 2 * MIB, 4 * MIB, page, DONTNEED) == (0, True)
            assert resident(address, 8 * MIB) == [True] * 512 + [False] * 1024 + [True] * 512
            for begin in range(address, address + 8 * MIB, MIB):
                assert (flags(begin, MIB), policy(begin)) == before
            assert bytes_at(address, 8 * MIB).sum() == 4 * MIB
        refuse(NUMBERS["mremap"], errno.ENOMEM)
        mapped = len(areas(0, 1 << 63))
        assert table.decommit(address, 2 * MIB, page, DONTNEED)[0] == errno.ENOMEM
        assert bytes_at(address, 2 * MIB).min() == 1  # nothing is lost
        assert len(areas(0, 1 << 63)) == mapped
        """
    )


def test_a_process_that_locks_its_future_does_not_populate_reservations(run: Run) -> None:
    if os.geteuid() and resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY:
        pytest.skip("this user may not lock 8 GiB (RLIMIT_MEMLOCK)")
    run(
        """
        huge_pages_work = _core.huge_pages_work()
        assert LIBC.mlockall(2) == 0, os.strerror(ctypes.get_errno())
        before = osmem.resident_bytes()
        for strict, page in ((False, SMALL), (False, HUGE), (True, SMALL), (True, HUGE)):
            table = _core.ProbedPages(strict)
            address = table.reserve(8 * GIB, 2 * MIB, page)
            assert table.commit(address + MIB, GIB, page) == 0
            assert osmem.resident_bytes() - before < 256 * MIB
            memory = bytes_at(address + MIB, GIB)
            memory[:MIB] = 1
            assert table.decommit(address + MIB, GIB, page, DONTNEED) == (0, False)
            assert table.unreserve(address, 8 * GIB) == 0
        array = bigmem.ones(MIB, allocator=bigmem.ArenaAllocator())
        array = bigmem.ones(MIB, allocator=bigmem.MappedAllocator())
        assert _core.huge_pages_work() == huge_pages_work
        assert osmem.resident_bytes() - before < 256 * MIB
        """
    )
