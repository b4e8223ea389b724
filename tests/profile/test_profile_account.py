"""The tax that follows from counts and prices, and what the policies would save of it."""

import itertools
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiled import MIB, PRICES, made_up, made_up_line, records

from bigmem.profile.account import account, as_json
from bigmem.profile.savings import savings

FAULTS = st.integers(0, 1 << 40)


def test_times_add_up_and_faults_are_priced():
    record = made_up(
        made_up_line(line=1, calls=1, bytes=8, alloc_s=0.5, free_s=0.25, faulted_small=1000),
        made_up_line(line=2, calls=2, bytes=9, free_s=2.0, gil_free_s=1.5, faulted_huge=10),
    )
    found = account(record, PRICES, wall_s=10.0, minor_faults=1510)
    assert (found.alloc_s, found.free_s, found.gil_free_s) == (0.5, 2.25, 1.5)
    assert found.outside_fault_s == pytest.approx(500 * 2e-6)
    assert found.fault_s == pytest.approx(1500 * 2e-6 + 10 * 2e-4)
    assert found.tax_s == found.alloc_s + found.fault_s + found.free_s
    assert found.share == pytest.approx(found.tax_s / 10)
    assert [line.record.line for line in found.lines] == [2, 1]
    assert [line.fault_s for line in found.lines] == pytest.approx([0.002, 0.002])
    assert (found.calls, found.bytes) == (3, 17)


def test_more_faults_than_the_process_had_are_scaled_down():
    line = made_up_line(calls=1, faulted_small=300, faulted_huge=100)
    found = account(made_up(line), PRICES, 1.0, minor_faults=100)
    (line_account,) = found.lines
    assert line_account.record.faulted_small == pytest.approx(75)
    assert line_account.record.faulted_huge == pytest.approx(25)
    assert found.outside_fault_s == 0


@given(small=st.integers(0, 10_000), huge=st.integers(0, 1000), other=st.integers(0, 1000))
def test_huge_pages_are_told_apart_by_the_number_of_faults(small, huge, other):
    """Where the kernel tells pages that are there, but not how large they are."""
    seen = made_up_line(calls=1, faulted_small=small + 512 * huge)
    found = account(made_up(seen, tells_huge=False), PRICES, 1.0, minor_faults=small + huge)
    (line,) = found.lines
    assert line.record.faulted_small == pytest.approx(small, abs=1e-6)
    assert line.record.faulted_huge == pytest.approx(huge, abs=1e-6)
    # Faults elsewhere are taken for some of small pages: the huge ones become fewer, never more.
    found = account(made_up(seen, tells_huge=False), PRICES, 1.0, small + huge + other)
    assert found.lines[0].record.faulted_huge <= huge + 1e-6


@given(record=records(), wall_s=st.floats(0, 1e6), faults=FAULTS)
def test_any_record_makes_a_sound_account(record, wall_s, faults):
    found = account(record, PRICES, wall_s, faults)
    lines = found.lines
    faulted = sum(line.record.faulted_small + line.record.faulted_huge for line in lines)
    assert faulted <= faults * (1 + 1e-9)
    assert found.tax_s == pytest.approx(
        sum(line.tax_s for line in lines) + found.outside_fault_s, rel=1e-6
    )
    assert all(a.tax_s >= b.tax_s for a, b in itertools.pairwise(lines))
    text = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert {"wall_s", "tax_s", "alloc_s", "free_s", "minor_faults", "fault_s", "lines"} <= set(text)
    for line in text["lines"]:
        assert {"file", "line", "calls", "bytes", "alloc_s", "free_s"} <= set(line)


@given(record=records(), faults=FAULTS)
def test_any_account_has_savings(record, faults):
    found = account(record, PRICES, 1.0, faults)
    by_policy = {each.policy: each for each in savings(found)}
    assert set(by_policy) == {"recycle", "deferred", "dontneed", "mapped"}
    for each in by_policy.values():
        left = found.alloc_s + each.fault_s + each.free_s
        assert each.saved_s == pytest.approx(found.tax_s - left, rel=1e-6, abs=1e-6)
        assert math.isfinite(each.saved_s)
        assert min(each.fault_s, each.free_s) >= 0
    assert by_policy["recycle"].fault_s <= found.fault_s * (1 + 1e-9)
    assert by_policy["deferred"].free_s == by_policy["recycle"].free_s


def test_what_ten_equal_blocks_would_save():
    pages = 64 * 256
    block = {"bytes": 64 * MIB, "faulted_small": pages, "touched_small": pages}
    ten = {name: 10 * count for name, count in block.items()}
    line = made_up_line(calls=10, free_s=1.0, alloc_s=0.1, **ten)
    record = made_up(line, peak=64 * MIB, fresh=64 * MIB)
    found = account(record, PRICES, 10.0, 10 * pages)
    fault_s = 10 * pages * 2e-6
    by_policy = {each.policy: each for each in savings(found)}
    assert by_policy["recycle"].saved_s == pytest.approx(1.0 + 0.9 * fault_s, rel=1e-3)
    assert by_policy["deferred"].saved_s == pytest.approx(1.0, rel=1e-3)
    assert by_policy["dontneed"].saved_s == pytest.approx(1.0 - 10 * pages * 1e-7, rel=1e-3)
    assert by_policy["mapped"].saved_s == pytest.approx(1.0 - 10 * pages * 2e-7, rel=1e-3)

    # Ten blocks that live side by side are all fresh: nothing is recycled.
    found = replace(found, fresh=10 * 64 * MIB)
    assert savings(found)[0].saved_s == pytest.approx(1.0, rel=1e-3)

    # The C library reused its memory: policies that give it back would make it fault again.
    reused = made_up_line(calls=10, bytes=ten["bytes"], touched_small=ten["touched_small"])
    found = account(made_up(reused, peak=64 * MIB, fresh=64 * MIB), PRICES, 10.0, 0)
    by_policy = {each.policy: each for each in savings(found)}
    assert by_policy["deferred"].saved_s == pytest.approx(-fault_s, rel=1e-3)
    assert abs(by_policy["recycle"].saved_s) < 1e-4
