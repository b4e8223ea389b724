"""The stats as plain data."""

import json
import os
from dataclasses import asdict, replace

import numpy as np
import pytest

import bigmem
from bigmem.exporters.snapshot import snapshot

MIB = 1 << 20


def test_a_snapshot_is_json_and_equals_the_stats() -> None:
    arena = bigmem.ArenaAllocator(name="test of snapshots")
    block = arena.allocate(3 * MIB)
    found = json.loads(json.dumps(snapshot()))
    assert found["process"] == os.getpid()
    assert found["resident"] > 10 * MIB
    mine = found["allocators"]["test of snapshots"]
    assert mine == {**asdict(arena.stats()), "resident": arena.stats().resident}
    assert mine["live"] == 3 * MIB
    total = {name: sum(one[name] for one in found["allocators"].values()) for name in mine}
    assert found["total"] == pytest.approx(total)
    del block


def test_allocators_of_one_name_are_added_up_and_wrappers_left_out() -> None:
    first, second = (bigmem.ArenaAllocator(name="test of twins") for _ in range(2))
    wrapped = bigmem.Limited(second, "1GiB", name="test of wrappers")
    blocks = [first.allocate(MIB), wrapped.allocate(2 * MIB)]
    found = snapshot()["allocators"]
    assert found["test of twins"]["live"] == 3 * MIB
    assert "test of wrappers" not in found
    del blocks


def test_an_allocator_may_count_in_numbers_of_numpys() -> None:
    class Counting(bigmem.SystemAllocator):
        def stats(self) -> bigmem.AllocatorStats:
            figures = {"live": np.int64(7), "waits": np.uint8(1), "wait_seconds": np.float32(0.5)}
            return replace(super().stats(), **figures)  # type: ignore[arg-type]

    keeper = Counting(name="test of numbers")
    found = json.loads(json.dumps(snapshot()))["allocators"][keeper.name]
    assert (found["live"], found["waits"], found["wait_seconds"]) == (7, 1, 0.5)
