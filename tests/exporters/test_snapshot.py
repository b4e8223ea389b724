"""The stats as plain data."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

import bigmem
from bigmem.exporters.snapshot import snapshot
from bigmem.exporters.view import plain

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


def test_an_allocator_that_fails_costs_only_its_own_figures() -> None:
    class Odd(bigmem.SystemAllocator):
        def __init__(self, tell: Callable[[], object], name: str) -> None:
            self._tell = tell
            super().__init__(name=name)

        def stats(self) -> Any:
            return self._tell()

    def fail() -> None:
        raise RuntimeError("on strike")

    arena = bigmem.ArenaAllocator(name="test of failures")
    block = arena.allocate(MIB)
    nan = replace(bigmem.AllocatorStats(), wait_seconds=float("nan"))
    odd = [Odd(fail, "failing"), Odd(lambda: None, "empty"), Odd(lambda: nan, "nan")]
    found = json.loads(json.dumps(snapshot()))
    assert found["errors"]["failing"] == "RuntimeError: on strike"
    assert found["errors"]["empty"].startswith("TypeError: ")
    assert found["errors"]["nan"] == "ValueError: a figure is nan"
    assert len(found["errors"]) == len(odd)
    assert found["allocators"]["test of failures"]["live"] == MIB
    assert not {"failing", "empty", "nan"} & found["allocators"].keys()
    assert found["total"]["live"] == sum(one["live"] for one in found["allocators"].values())
    assert "failing cannot tell its figures: RuntimeError: on strike" in plain(snapshot())
    del block


def test_an_allocator_may_count_in_numbers_of_numpys() -> None:
    class Counting(bigmem.SystemAllocator):
        def stats(self) -> bigmem.AllocatorStats:
            figures = {"live": np.int64(7), "waits": np.uint8(1), "wait_seconds": np.float32(0.5)}
            return replace(super().stats(), **figures)  # type: ignore[arg-type]

    keeper = Counting(name="test of numbers")
    found = json.loads(json.dumps(snapshot()))["allocators"][keeper.name]
    assert (found["live"], found["waits"], found["wait_seconds"]) == (7, 1, 0.5)
