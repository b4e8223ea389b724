"""The core's extent map beside its Python model, driven by hypothesis with a clock of its own."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bigmem import _core
from bigmem.arena.extents import Extent, Extents

UNIT = 4096
STATES = ("live", "pending", "reclaiming", "warm", "lazy", "clean")
# Eighths of seconds and whole pages keep every sum of products exact in double precision.
TICK = 0.125
units = st.integers(1, 40).map(lambda n: n * UNIT)
limits = st.one_of(st.integers(1, 20).map(lambda n: n * UNIT), st.just(1 << 40))


class ExtentMaps(RuleBasedStateMachine):
    """Every operation goes to both; afterwards both must tell the same story."""

    decay = 10.0

    def __init__(self) -> None:
        super().__init__()
        self.core = _core.ExtentMap(UNIT, self.decay)
        self.model = Extents(UNIT, self.decay)
        self.now = 1000.0
        self.serial = 0
        self.edge = 1 << 30
        self.covered = 0

    def choose(self, data: st.DataObject, state: str, *, fenced: bool = False) -> Extent:
        found = sorted(
            (e for e in self.model.all if e.state == state and (e.queue == "fenced") == fenced),
            key=lambda e: e.begin,
        )
        return found[data.draw(st.integers(0, len(found) - 1))]

    def has(self, state: str, *, fenced: bool = False) -> bool:
        return any(e.state == state and (e.queue == "fenced") == fenced for e in self.model.all)

    @initialize(pieces=st.integers(0, 30), held=st.sampled_from([1, 2, 3]))
    def shatter(self, pieces: int, held: int) -> None:
        # Small extents that do not touch, more of them than best fit tries at an alignment.
        self.add_region(size=128 * UNIT, gap=True, zero=True)
        for _ in range(pieces):
            self.allocate(size=UNIT, alignment=64, clean=True)
        live = sorted((e for e in self.model.all if e.state == "live"), key=lambda e: e.begin)
        for place, extent in enumerate(live):
            if place % (held + 1):
                self.end(extent, "warm")

    @rule(size=st.integers(8, 200).map(lambda n: n * UNIT), gap=st.booleans(), zero=st.booleans())
    def add_region(self, size: int, gap: bool, zero: bool) -> None:
        # Without a gap two regions touch: extents must not merge across.
        self.edge += gap * 64 * UNIT
        self.core.add_region(self.edge, size, zero)
        self.model.add_region(self.edge, size, zero)
        self.edge += size
        self.covered += size

    @rule(
        size=units, alignment=st.sampled_from([64, UNIT, 8 * UNIT, 64 * UNIT]), clean=st.booleans()
    )
    def allocate(self, size: int, alignment: int, clean: bool) -> None:
        got = self.core.allocate(size, alignment, clean)
        expected = self.model.allocate(size, alignment, clean)
        if expected is None:
            assert got is None
            return
        extent, state, zero = expected
        assert got == (extent.begin, state, zero)
        assert extent.begin % alignment == 0

    @precondition(lambda self: self.has("live"))
    @rule(data=st.data(), to=st.sampled_from(["warm", "warm", "pending", "reclaiming"]))
    def release(self, data: st.DataObject, to: str) -> None:
        self.end(self.choose(data, "live"), to)

    def end(self, extent: Extent, to: str) -> None:
        self.serial += 1
        self.core.release(extent.begin, to, self.now, self.serial)
        self.model.release(extent, to, self.now, self.serial)  # type: ignore[arg-type]

    @precondition(lambda self: self.has("live"))
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        extent = self.choose(data, "live")
        self.serial += 1
        self.core.park(extent.begin, self.now, self.serial)
        self.model.park(extent, self.now, self.serial)

    @precondition(lambda self: self.has("pending", fenced=True))
    @rule(data=st.data(), to=st.sampled_from(["warm", "pending", "reclaiming"]))
    def unfence(self, data: st.DataObject, to: str) -> None:
        extent = self.choose(data, "pending", fenced=True)
        self.core.unfence(extent.begin, to, self.now)
        self.model.unfence(extent, to, self.now)  # type: ignore[arg-type]

    @rule(kind=st.sampled_from(["due", "due", "pending", "warm", "any"]), limit=limits)
    def take(self, kind: str, limit: int) -> None:
        got = self.core.take(kind, self.now, limit)
        extent = self.model.take(kind, self.now, limit)  # type: ignore[arg-type]
        assert got == (None if extent is None else (extent.begin, extent.size))
        if extent is not None:
            assert extent.size <= limit

    @precondition(lambda self: self.has("reclaiming"))
    @rule(data=st.data(), outcome=st.sampled_from(["clean_zero", "clean", "lazy", "refused"]))
    def finish(self, data: st.DataObject, outcome: str) -> None:
        self.become(self.choose(data, "reclaiming"), outcome)

    @precondition(lambda self: self.has("live"))
    @rule(data=st.data(), outcome=st.sampled_from(["clean_zero", "clean", "lazy"]))
    def reclaim_at_once(self, data: st.DataObject, outcome: str) -> None:
        extent = self.choose(data, "live")
        self.end(extent, "reclaiming")
        self.become(extent, outcome)

    def become(self, extent: Extent, outcome: str) -> None:
        got = self.core.finish(extent.begin, outcome)
        merged = self.model.finish(extent, outcome)  # type: ignore[arg-type]
        assert got == (merged.begin, merged.size)

    @precondition(lambda self: self.has("clean"))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        extent = self.choose(data, "clean")
        self.covered -= extent.size
        self.core.remove(extent.begin)
        self.model.remove(extent)

    @rule(ticks=st.integers(0, 60))
    def wait(self, ticks: int) -> None:
        self.now += ticks * TICK

    @rule()
    def requeue(self) -> None:
        self.core.requeue()
        self.model.requeue()

    @invariant()
    def both_agree(self) -> None:
        told = self.core.extents()
        expected = sorted(
            (e.begin, e.size, e.state, e.zero, e.since, e.oldest, e.serial) for e in self.model.all
        )
        assert told == expected
        for state in STATES:
            assert self.core.bytes(state) == self.model.bytes(state)  # type: ignore[arg-type]
        for serial in (0, self.serial // 2, self.serial):
            assert self.core.settled(serial) == self.model.settled(serial)

    @invariant()
    def every_byte_is_in_one_extent(self) -> None:
        extents = sorted(self.model.all, key=lambda e: e.begin)
        assert sum(e.size for e in extents) == self.covered
        for low, high in itertools.pairwise(extents):
            assert low.end <= high.begin
            if low.region == high.region:
                assert low.end == high.begin
                assert not (low.state == high.state == "clean")


class EndlessExtentMaps(ExtentMaps):
    decay = float("inf")


class ImmediateExtentMaps(ExtentMaps):
    decay = 0.0


@pytest.mark.parametrize("machine", [ExtentMaps, EndlessExtentMaps, ImmediateExtentMaps])
def test_core_and_model_agree(machine: type[ExtentMaps]) -> None:
    test = machine.TestCase
    test.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
    test("runTest").runTest()


def warm_map(decay: float, sizes: list[int], released: list[float]) -> "_core.ExtentMap":
    extents = _core.ExtentMap(UNIT, decay)
    extents.add_region(1 << 30, 2 * sum(sizes), True)
    begins = []
    for size in sizes:
        found = extents.allocate(size, 64, True)
        assert found is not None
        begins.append(found[0])
    for serial, (begin, now) in enumerate(zip(begins, released, strict=True), 1):
        extents.release(begin, "warm", now, serial)
    return extents


def drain_due(extents: "_core.ExtentMap", now: float, chunk: int) -> int:
    total = 0
    while (taken := extents.take("due", now, chunk)) is not None:
        extents.finish(taken[0], "clean_zero")
        total += taken[1]
    return total


def test_warm_memory_goes_back_evenly_in_the_second_half_of_the_decay_time() -> None:
    size, chunk = 1024 * UNIT, 4 * UNIT
    extents = warm_map(8.0, [size], [0.0])
    assert drain_due(extents, 3.875, chunk) == 0
    assert drain_due(extents, 4.0, chunk) == 0
    gone = 0
    for tick in range(1, 33):
        now = 4.0 + tick * TICK
        gone += drain_due(extents, now, chunk)
        even = size * (now - 4.0) / 4.0
        assert even - chunk <= gone <= even + chunk
    assert gone == size


def test_many_small_extents_decay_as_one_large_one_does() -> None:
    sizes = [UNIT] * 512
    extents = warm_map(8.0, sizes, [0.125 * (i % 2) for i in range(512)])
    gone = [drain_due(extents, 4.0 + tick * TICK, 64 * UNIT) for tick in range(34)]
    assert sum(gone) == sum(sizes)
    assert max(gone) <= sum(sizes) / 4


def test_steady_release_is_given_back_at_the_rate_it_comes() -> None:
    size, chunk = 64 * UNIT, 16 * UNIT
    extents = _core.ExtentMap(UNIT, 8.0)
    extents.add_region(1 << 30, 512 * size, True)
    blocks = [extents.allocate(size, 64, True) for _ in range(400)]
    returned = []
    for tick, block in enumerate(blocks):
        assert block is not None
        extents.release(block[0], "warm", tick * TICK, tick + 1)
        returned.append(drain_due(extents, tick * TICK, chunk))
    # Half the decay time nothing, then it settles: each tick gives back about what it took.
    assert sum(returned[:32]) == 0
    assert all(size - chunk <= amount <= size + chunk for amount in returned[200:])


def test_busy_neighbours_do_not_keep_an_idle_extent_warm() -> None:
    extents = _core.ExtentMap(UNIT, 8.0)
    extents.add_region(1 << 30, 1024 * UNIT, True)
    large = extents.allocate(512 * UNIT, 64, True)
    small = extents.allocate(UNIT, 64, True)
    assert large is not None
    assert small is not None
    extents.release(large[0], "warm", 0.0, 1)
    gone = 0
    # The small neighbour is released over and over, as a busy program would.
    for tick in range(1, 100):
        now = tick * TICK
        extents.release(small[0], "warm", now, tick + 1)
        gone += drain_due(extents, now, 64 * UNIT)
        again = extents.allocate(UNIT, 64, True)
        assert again is not None
        small = again
    assert gone >= 500 * UNIT
