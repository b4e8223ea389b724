"""The doctor's measurements, on the machine that runs the tests."""

import subprocess
import sys
import textwrap
from dataclasses import asdict

import pytest

from bigmem import osmem
from bigmem.profile import costs
from bigmem.profile.costs import HUGE_PAGE, MIB, affordable, page_costs

SIZE = 16 * MIB


def run(program: str) -> None:
    """In a process of its own, which must be content."""
    code = "import ctypes, mmap, resource\nfrom bigmem.profile import costs\n"
    subprocess.run([sys.executable, "-c", code + textwrap.dedent(program)], check=True, timeout=120)


def test_a_fault_has_a_price_in_both_regimes() -> None:
    small = page_costs(SIZE, huge=False, seconds=60.0).fault_s
    huge = page_costs(SIZE, huge=True, seconds=60.0).fault_s
    assert 0 < small < 1e-3
    if osmem.huge_pages_work():
        # 512 times as much is zeroed, at once.
        assert small < huge < 512 * small
    else:
        assert huge == 0


def test_without_huge_pages_they_have_no_price() -> None:
    run("""
        PR_SET_THP_DISABLE = 41
        assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
        found = costs.page_costs(16 << 20, huge=False, seconds=0)
        assert found.fault_s > 0, found
        found = costs.page_costs(16 << 20, huge=True, seconds=0)
        assert found.huge_share == 0 and found.fault_s == 0, found
        assert costs.numpy_huge_share(16 << 20) == 0
        """)


@pytest.mark.parametrize("huge", [False, True])
def test_page_costs_are_positive_and_complete(huge: bool) -> None:
    found = page_costs(SIZE, huge=huge, seconds=60.0)
    figures = asdict(found)
    assert figures.pop("numpy_free_ms") is None  # malloc may keep blocks of this size
    share = figures.pop("huge_share")
    assert (share > 0) == (huge and osmem.huge_pages_work())
    assert all(value > 0 for value in figures.values()), figures
    assert found.nbytes == SIZE
    if share in (0, 1):
        page = HUGE_PAGE if share else costs.SMALL_PAGE
        assert found.fault_s * 1e3 * costs.GIB / page == pytest.approx(
            found.first_touch_ms, rel=0.5
        )


def test_what_is_far_slower_than_the_rest_does_not_count() -> None:
    assert costs._typical([1.0, 2.0, 3.0, 9.0]) == 2.0
    assert costs._typical([0.0, 0.0, 0.0]) == 0.0
    assert costs._typical([-1.0, -3.0]) == -2.0  # differences of times may be


def test_more_rounds_where_there_is_time_and_numpy_where_there_is_room() -> None:
    found = page_costs(64 * MIB, huge=True, seconds=60.0)
    assert found.rounds > 1
    assert found.numpy_free_ms is not None
    assert found.numpy_free_ms > 0


def test_a_short_time_shrinks_what_is_touched() -> None:
    found = page_costs(1024 * MIB, huge=False, seconds=0.05)
    assert found.nbytes < 1024 * MIB
    assert found.nbytes % HUGE_PAGE == 0


def test_no_more_than_a_tenth_of_what_is_left_is_touched() -> None:
    assert affordable(4 * MIB) == 4 * MIB
    run("""
        def soft(limit, nbytes):
            resource.setrlimit(limit, (nbytes, resource.getrlimit(limit)[1]))

        MIB = 1 << 20
        costs.pressure.headroom = lambda: None  # whatever this machine has left
        wanted = costs.affordable(1 << 50)
        soft(resource.RLIMIT_AS, 4096 * MIB)
        by_space = costs.affordable(1 << 50)
        assert by_space < min(wanted, 410 * MIB) and by_space % (2 * MIB) == 0, by_space
        soft(resource.RLIMIT_DATA, 1024 * MIB)
        assert 2 * MIB <= costs.affordable(1 << 50) <= 102 * MIB < by_space
        soft(resource.RLIMIT_AS, 1)
        assert costs.affordable(1 << 50) == 2 * MIB
        """)
