"""Huge pages where they are asked for and to be had, and nowhere else."""

from collections.abc import Callable

import numpy as np
import pytest
from kernel import GIB, MIB, NUMBERS, PAGE, Range, areas, flags

import bigmem
from bigmem import osmem

Run = Callable[..., str]
MakeRange = Callable[..., Range]

needs_huge_pages = pytest.mark.skipif(
    osmem.transparent_huge_pages() == "never", reason="this system has no transparent huge pages"
)
needs_numbers = pytest.mark.skipif(not NUMBERS, reason="system calls of this machine unknown here")


@needs_huge_pages
def test_always_means_huge_pages_and_never_means_none() -> None:
    for huge, nbytes in (("always", GIB), ("never", 64 * MIB)):
        allocator = bigmem.ArenaAllocator(
            pages=bigmem.AnonymousPages(huge=huge),  # type: ignore[arg-type]
            release=bigmem.Inline(),
        )
        block = allocator.allocate(nbytes)
        np.frombuffer(memoryview(block), np.uint8)[::PAGE] = 1
        got = sum(area["AnonHugePages"] for area in areas(block.address, nbytes))
        if huge == "always":
            assert got >= 0.9 * nbytes
        else:
            # Also where the system makes every page huge that it can.
            assert got == 0
            assert flags(block.address, nbytes) == {"nh"}
        block.release()


@needs_huge_pages
def test_the_hint_stays_within_our_memory(run: Run) -> None:
    run(
        """
        def hinted():
            return {(a["begin"], a["end"]) for a in areas(0, 1 << 63) if "hg" in a["flags"]}

        table = _core.ProbedPages()
        before = hinted()
        ours = table.reserve(4 * MIB, 2 * MIB, HUGE)
        # What lies right beside it: nothing yet, or someone else's.
        for beside in (ours - PAGE, ours + 4 * MIB):
            place = ctypes.c_void_p(beside), ctypes.c_size_t(PAGE)
            LIBC.mmap(*place, 3, 0x100022, -1, ctypes.c_long(0))
            assert "hg" not in areas(beside, PAGE)[0]["flags"]
        assert hinted() - before == {(ours, ours + 4 * MIB)}
        LIBC.munmap(ctypes.c_void_p(ours + MIB), ctypes.c_size_t(PAGE))
        assert table.decommit(ours, 4 * MIB, HUGE, DONTNEED) == (0, True)
        assert hinted() - before == {(ours, ours + 4 * MIB)}
        assert table.unreserve(ours, 4 * MIB) == 0
        assert osmem.huge_pages_work() in (True, False)
        assert hinted() == before
        """
    )


def test_whether_huge_pages_work_is_found_by_trying_once(run: Run) -> None:
    run(
        """
        def hinted():  # not all areas: the interpreter has new ones of its own
            return [(a["begin"], a["end"]) for a in areas(0, 1 << 63) if "hg" in a["flags"]]

        bigmem.ArenaAllocator(pages=bigmem.AnonymousPages(huge="never"))
        bigmem.ArenaAllocator(pages=bigmem.AnonymousPages(huge="always"))
        assert osmem.huge_pages_work.cache_info().misses == 0
        before = hinted()
        work = osmem.huge_pages_work()
        assert hinted() == before
        # Another way to see it: the kernel's account of a range that was filled.
        table = _core.ProbedPages()
        address = table.reserve(16 * MIB, 2 * MIB, HUGE)
        bytes_at(address, 16 * MIB)[::PAGE] = 1
        assert work == (areas(address, 16 * MIB)[0]["AnonHugePages"] > 0)
        for _ in range(3):
            assert bigmem.AnonymousPages()._resolve() == ("auto" if work else "never")
        assert osmem.huge_pages_work.cache_info().misses == 1
        os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"
        assert bigmem.AnonymousPages()._resolve() == "never"
        assert bigmem.AnonymousPages(huge="always")._resolve() == "always"
        """
    )


def test_a_process_that_gets_no_huge_pages_finds_out(run: Run) -> None:
    run(
        """
        assert LIBC.prctl(41, 1, 0, 0, 0) == 0  # PR_SET_THP_DISABLE
        assert bigmem.AnonymousPages()._resolve() == "never"
        pages = bigmem.AnonymousPages(huge="always")
        block = bigmem.ArenaAllocator(pages=pages).allocate(64 * MIB)
        bytes_at(block.address, 64 * MIB)[:] = 1
        assert sum(a["AnonHugePages"] for a in areas(block.address, 64 * MIB)) == 0
        """
    )


@needs_numbers
def test_a_kernel_that_refuses_the_hint_is_found_out(run: Run) -> None:
    run(
        """
        refuse(NUMBERS["madvise"], errno.EINVAL, 14)
        assert osmem.huge_pages_work() == (osmem.transparent_huge_pages() == "always")
        """
    )
