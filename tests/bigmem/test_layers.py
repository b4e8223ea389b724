"""Nested timers: what they count, beside a model with a fake clock."""

import contextvars
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_times import Clock, flat, module

import bigmem

# A model: entries with their intervals, each context with a list of all entries ever made in it.


@dataclass(eq=False)
class Entry:
    begin: float
    paths: dict[int, tuple[str, ...]]  # by record
    around: "Entry | None"  # the layer around it, whatever records lie between
    leave: Callable[[], object]
    is_layer: bool
    end: float | None = None

    def times(self, now: float, others: "list[Entry]") -> tuple[float, float]:
        """Seconds, and how many of them other layers directly inside cover: second by second."""
        end = now if self.end is None else self.end
        covered = set()
        for one in others:
            if one.is_layer and one.around is self:
                until = end if one.end is None else min(end, one.end)
                covered |= set(range(int(one.begin), int(until)))
        return end - self.begin, float(len(covered))


@dataclass(eq=False)
class Strand:
    """A context with the entries made in it and, before it was copied, in the one copied."""

    context: contextvars.Context
    entries: list[Entry] = field(default_factory=list)

    def innermost(self) -> Entry | None:
        opened = [one for one in self.entries if one.end is None]
        return opened[-1] if opened else None


class World:
    """The module and the model side by side."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.strands = [Strand(contextvars.copy_context())]
        self.entries: list[Entry] = []
        self.records: list[tuple[int, Callable[[], bigmem.LayerTree]]] = []
        self.record(0)

    def _entered(self, strand: Strand, leave: Callable[[], object], name: str | None) -> None:
        outer = strand.innermost()
        paths = {} if outer is None else dict(outer.paths)
        if name is None:
            paths[len(self.records)] = ()
        else:
            paths = {record: (*path, name) for record, path in paths.items()}
        around = outer if outer is None or outer.is_layer else outer.around
        entry = Entry(self.clock.now, paths, around, leave, name is not None)
        strand.entries.append(entry)
        self.entries.append(entry)

    def enter(self, k: int, name: str) -> None:
        strand = self.strands[k % len(self.strands)]
        layer = bigmem.layer(name)
        strand.context.run(layer.__enter__)
        self._entered(strand, lambda: layer.__exit__(None, None, None), name)

    def record(self, k: int) -> None:
        strand = self.strands[k % len(self.strands)]
        record = bigmem.record_layers()
        recorded = strand.context.run(record.__enter__)
        self._entered(strand, lambda: record.__exit__(None, None, None), None)
        self.records.append((len(self.records), recorded))

    def leave(self, k: int, j: int) -> None:
        """Leave an open entry, not always the innermost one, in whatever context."""
        opened = [one for one in self.entries if one.end is None]
        if opened:
            entry = opened[-1 - j % len(opened)]
            self.strands[k % len(self.strands)].context.run(entry.leave)
            entry.end = self.clock.now

    def leave_innermost(self, k: int) -> None:
        strand = self.strands[k % len(self.strands)]
        entry = strand.innermost()
        if entry is not None:
            strand.context.run(entry.leave)
            entry.end = self.clock.now

    def copy(self, k: int) -> None:
        strand = self.strands[k % len(self.strands)]
        self.strands.append(Strand(strand.context.copy(), list(strand.entries)))

    def compare(self) -> None:
        for strand in self.strands:
            for number, recorded in self.records:
                expected: dict[tuple[str, ...], list[float]] = {}
                for entry in self.entries:
                    for record, path in entry.paths.items():
                        if record != number or not entry.is_layer:
                            continue
                        counts = entry.end is not None or entry in strand.entries
                        seconds, inner = entry.times(self.clock.now, self.entries)
                        total = expected.setdefault(path, [0, 0.0, 0.0])
                        total[0] += counts
                        total[1] += counts * seconds
                        total[2] += counts * inner
                found = flat(strand.context.run(recorded).layers)
                assert {path: list(counted) for path, counted in found.items()} == expected


INDEX = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("enter"), INDEX, st.sampled_from("abc")),
    st.tuples(st.just("enter"), INDEX, st.sampled_from("abc")),
    st.tuples(st.just("leave_innermost"), INDEX),
    st.tuples(st.just("leave_innermost"), INDEX),
    st.tuples(st.just("leave"), INDEX, INDEX),
    st.tuples(st.just("copy"), INDEX),
    st.tuples(st.just("record"), INDEX),
)


@settings(max_examples=300)
@given(st.lists(st.tuples(STEPS, st.integers(0, 3)), max_size=30))
def test_whatever_nests_how_ever_is_counted_as_by_the_model(
    steps: list[tuple[tuple[Any, ...], int]],
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_now", clock)
        world = World(clock)
        for (action, *arguments), seconds in steps:
            getattr(world, action)(*arguments)
            clock.tick(seconds)
        world.compare()
        while any(entry.end is None for entry in world.entries):
            world.leave(0, 0)
            clock.tick(1)
        world.compare()


# The story.


def test_the_gap_is_what_the_table_shows(clock: Clock, recorded: Any) -> None:
    with bigmem.layer("prove"):
        with bigmem.layer("gpu"):
            clock.tick(26.1)
        clock.tick(10.1)
    with bigmem.layer("write\n"):
        clock.tick(0.5)
    assert str(recorded()) == (
        "layer      calls   wall s  inside s    gap s  gap %\n"
        "prove          1  36.2000   26.1000  10.1000  27.9%\n"
        "  gpu          1  26.1000\n"
        "'write\\n'      1   0.5000\n"
        "gap: time in a layer that no layer inside it accounts for"
    )


def test_destructors_run_in_the_gap(clock: Clock, recorded: Any) -> None:
    class Huge:
        def __del__(self) -> None:
            clock.tick(10)

    def build() -> int:
        with bigmem.layer("inside"):
            held = [Huge()]
            clock.tick(3)
            return len(held)

    with bigmem.layer("outside"):
        assert build() == 1
    assert flat(recorded().layers) == {("outside",): (1, 13, 3), ("outside", "inside"): (1, 3, 0)}


def test_a_tree_is_ready_for_json(clock: Clock, recorded: Any) -> None:
    with bigmem.layer("outer"), bigmem.layer("inner"):
        clock.tick(2)
    inner = {"name": "inner", "calls": 1, "wall_s": 2.0, "inner_s": 0.0, "gap_s": 2.0,
             "share": 1.0, "layers": []}  # fmt: skip
    outer = {"name": "outer", "calls": 1, "wall_s": 2.0, "inner_s": 2.0, "gap_s": 0.0,
             "share": 0.0, "layers": [inner]}  # fmt: skip
    assert json.loads(json.dumps(asdict(recorded()))) == {"layers": [outer]}


def test_nothing_recorded_says_so(recorded: Any) -> None:
    assert recorded() == bigmem.LayerTree(())
    assert str(recorded()) == "no layers were recorded"


# Recursion and depth.


def test_a_recursive_function_makes_a_level_at_each_depth(clock: Clock, recorded: Any) -> None:
    @bigmem.layer("half")
    def half(size: int) -> None:
        if size > 1:
            half(size // 2)
            half(size // 2)
        clock.tick(size)

    half(4)
    assert flat(recorded().layers) == {
        ("half",): (1, 12, 8),
        ("half", "half"): (2, 8, 4),
        ("half", "half", "half"): (4, 4, 0),
    }


def test_what_lies_too_deep_is_counted_and_not_listed(clock: Clock, recorded: Any) -> None:
    extra = 60

    @bigmem.layer("down")
    def down(levels: int) -> None:
        clock.tick(1)
        if levels > 1:
            down(levels - 1)

    down(module.DEEPEST + extra)
    times = flat(recorded().layers)
    assert len(times) == module.DEEPEST
    assert times[("down",) * module.DEEPEST] == (1, 1 + extra, extra)
    assert json.loads(json.dumps(asdict(recorded())))["layers"][0]["gap_s"] == 1
    assert len(str(recorded()).splitlines()) == module.DEEPEST + 2


# Records.


def test_a_record_is_a_part_of_its_surroundings(clock: Clock, recorded: Any) -> None:
    @bigmem.layer("work")
    def work() -> None:
        clock.tick(1)

    with bigmem.layer("outer"):
        work()
        with bigmem.record_layers() as part:
            work()
            clock.tick(10)
            with bigmem.record_layers() as smaller:
                work()
    work()
    assert flat(smaller().layers) == {("work",): (1, 1, 0)}
    assert flat(part().layers) == {("work",): (2, 2, 0)}
    assert flat(recorded().layers) == {
        ("outer",): (1, 13, 3),
        ("outer", "work"): (3, 3, 0),
        ("work",): (1, 1, 0),
    }


def test_records_of_two_threads_do_not_mix() -> None:
    barrier = threading.Barrier(2, timeout=20)

    def work(name: str) -> list[str]:
        with bigmem.record_layers() as recorded:
            for _ in range(3):
                barrier.wait()
                with bigmem.layer(name):
                    barrier.wait()
        return [one.name for one in recorded().layers]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, "ab")) == [["a"], ["b"]]


def test_open_layers_count_up_to_now_for_those_inside(clock: Clock, recorded: Any) -> None:
    with bigmem.layer("outer"):
        clock.tick(1)
        with bigmem.layer("inner"):
            clock.tick(2)
            inside = recorded()
            (elsewhere,) = ThreadPoolExecutor(1).map(lambda _: recorded(), [0])
    assert flat(inside.layers) == {("outer",): (1, 3, 2), ("outer", "inner"): (1, 2, 0)}
    assert flat(elsewhere.layers) == {("outer",): (0, 0, 0), ("outer", "inner"): (0, 0, 0)}
    assert "outer" in str(elsewhere)
