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
    run_state_machine_as_test,
)

from bigmem import _core
from bigmem.arena.extents import Extent, Extents

PAGE = 4096
HUGE = 8 * PAGE  # as 2 MiB are to 4 KiB, but small enough to meet every case
STATES = ("live", "pending", "reclaiming", "warm", "lazy", "clean")
# Eighths of seconds and whole pages keep every sum of products exact in double precision.
TICK = 0.125
large_sizes = st.one_of(st.integers(8, 20), st.integers(1, 40))
alignments = st.sampled_from([64, PAGE, 2 * PAGE, HUGE, 64 * PAGE])
limits = st.one_of(st.integers(1, 8).map(lambda n: n * HUGE), st.just(1 << 40))
outcomes = st.sampled_from(["clean_zero", "clean", "lazy", "refused", "wiped"])
endings = st.sampled_from(["warm", "warm", "pending", "reclaiming"])


class ExtentMaps(RuleBasedStateMachine):
    """Every operation goes to both; afterwards both must tell the same story, and a true one."""

    unit = PAGE
    decay = 10.0

    def __init__(self) -> None:
        super().__init__()
        self.core = _core.ExtentMap(self.unit, self.decay, PAGE)
        self.model = Extents(self.unit, self.decay, PAGE)
        self.now = 1000.0
        self.serial = 0
        self.edge = 1 << 30
        self.covered = 0
        # What the world outside would know: the blocks in use or fenced, the pages that somebody
        # may have written since they were zero, those that a child of fork may have too.
        self.held: dict[int, int] = {}
        self.written: set[int] = set()
        self.forked: set[int] = set()

    def choose(self, data: st.DataObject, state: str, *, fenced: bool = False) -> Extent:
        found = sorted(
            (e for e in self.model.all if e.state == state and (e.queue == "fenced") == fenced),
            key=lambda e: e.begin,
        )
        return found[data.draw(st.integers(0, len(found) - 1))]

    def has(self, state: str, *, fenced: bool = False) -> bool:
        return any(e.state == state and (e.queue == "fenced") == fenced for e in self.model.all)

    @initialize(
        large=st.integers(0, 12), small=st.integers(0, 30), pages=st.integers(1, 3),
        held=st.sampled_from([1, 2, 3]),
    )  # fmt: skip
    def shatter(self, large: int, small: int, pages: int, held: int) -> None:
        # Small extents that do not touch, more of them than best fit tries at an alignment, and
        # units that several blocks share.
        self.add_region(units=25 * HUGE // self.unit, gap=True, zero=True)
        for _ in range(large):
            self.allocate(size=self.unit + pages * PAGE, alignment=64, clean=True)
        for _ in range(small):
            self.allocate(size=pages * PAGE, alignment=64, clean=True)
        live = sorted((e for e in self.model.all if e.state == "live"), key=lambda e: e.begin)
        for place, extent in enumerate(live):
            if place % (held + 1):
                self.end(extent, "warm")

    @rule(units=st.integers(1, 25), gap=st.booleans(), zero=st.booleans())
    def add_region(self, units: int, gap: bool, zero: bool) -> None:
        # Without a gap two regions touch: extents must not merge across.
        size = units * self.unit
        self.edge += gap * 64 * PAGE
        self.core.add_region(self.edge, size, zero)
        self.model.add_region(self.edge, size, zero)
        if not zero:
            self.written.update(pages_of(self.edge, size))
        self.edge += size
        self.covered += size

    @rule(pages=large_sizes, alignment=alignments, clean=st.booleans())
    def allocate_large(self, pages: int, alignment: int, clean: bool) -> None:
        self.allocate(pages * PAGE, alignment, clean)

    @rule(pages=st.integers(1, 7), alignment=alignments)
    def allocate_small(self, pages: int, alignment: int) -> None:
        self.allocate(pages * PAGE, alignment, True)

    def allocate(self, size: int, alignment: int, clean: bool) -> None:
        got = self.core.allocate(size, alignment, clean)
        expected = self.model.allocate(size, alignment, clean)
        if expected is None:
            assert got is None
            return
        extent, state, zero = expected
        assert got == (extent.begin, state, zero)
        assert extent.begin % alignment == 0
        assert extent.size == size
        assert not zero or self.written.isdisjoint(pages_of(extent.begin, size))
        self.held[extent.begin] = size
        self.written.update(pages_of(extent.begin, size))

    @precondition(lambda self: self.has("live"))
    @rule(data=st.data(), to=endings)
    def release(self, data: st.DataObject, to: str) -> None:
        self.end(self.choose(data, "live"), to)

    def end(self, extent: Extent, to: str) -> Extent | None:
        self.serial += 1
        begin = extent.begin
        del self.held[begin]
        got = self.core.release(begin, to, self.now, self.serial)
        left = self.model.release(extent, to, self.now, self.serial)  # type: ignore[arg-type]
        assert got == (None if left is None else (left.begin, left.size))
        return left

    @precondition(lambda self: self.has("live"))
    @rule(data=st.data(), pages=st.integers(1, 30), clean=st.booleans())
    def grow(self, data: st.DataObject, pages: int, clean: bool) -> None:
        extent = self.choose(data, "live")
        size = extent.size + pages * PAGE
        resident = self.model.bytes("warm") + self.model.bytes("lazy")
        taken = self.model.grow(extent, size, clean)
        assert self.core.grow(extent.begin, size, clean) == taken
        if taken is None:
            return
        assert extent.size == size
        # What is no longer idle, and what a budget is charged for, is what is live now.
        resident -= self.model.bytes("warm") + self.model.bytes("lazy")
        assert resident + taken == pages * PAGE
        assert clean or not taken
        assert taken % self.unit == 0
        self.written.update(pages_of(extent.begin, size))
        self.held[extent.begin] = size

    @precondition(lambda self: self.has("live"))
    @rule(data=st.data(), to=endings)
    def shrink(self, data: st.DataObject, to: str) -> None:
        extent = self.choose(data, "live")
        pages = data.draw(st.integers(1, extent.size // PAGE))
        if pages * PAGE == extent.size:
            return
        self.serial += 1
        self.held[extent.begin] = size = pages * PAGE
        got = self.core.shrink(extent.begin, size, to, self.now, self.serial)
        left = self.model.shrink(extent, size, to, self.now, self.serial)  # type: ignore[arg-type]
        assert got == (None if left is None else (left.begin, left.size))
        assert extent.size == size

    @precondition(lambda self: self.has("live"))
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        extent = self.choose(data, "live")
        self.serial += 1
        self.core.park(extent.begin, self.now, self.serial)
        self.model.park(extent, self.now, self.serial)

    @precondition(lambda self: self.has("pending", fenced=True))
    @rule(data=st.data(), to=endings)
    def unfence(self, data: st.DataObject, to: str) -> None:
        extent = self.choose(data, "pending", fenced=True)
        del self.held[extent.begin]
        got = self.core.unfence(extent.begin, to, self.now)
        left = self.model.unfence(extent, to, self.now)  # type: ignore[arg-type]
        assert got == (None if left is None else (left.begin, left.size))

    @rule(kind=st.sampled_from(["due", "due", "pending", "warm", "any"]), limit=limits)
    def take(self, kind: str, limit: int) -> None:
        self.next(kind, limit)

    def next(self, kind: str, limit: int) -> Extent | None:
        got = self.core.take(kind, self.now, limit)
        extent = self.model.take(kind, self.now, limit)  # type: ignore[arg-type]
        assert got == (None if extent is None else (extent.begin, extent.size))
        assert extent is None or extent.size <= limit
        return extent

    @precondition(lambda self: self.has("reclaiming"))
    @rule(data=st.data(), outcome=outcomes)
    def finish(self, data: st.DataObject, outcome: str) -> None:
        self.become(self.choose(data, "reclaiming"), outcome)

    @precondition(lambda self: self.has("live"))
    @rule(data=st.data(), outcome=outcomes)
    def reclaim_at_once(self, data: st.DataObject, outcome: str) -> None:
        if (left := self.end(self.choose(data, "live"), "reclaiming")) is not None:
            assert left.state == "reclaiming"
            self.become(left, outcome)

    def become(self, extent: Extent, outcome: str) -> None:
        reclaimed = pages_of(extent.begin, extent.size)
        if outcome in ("clean_zero", "wiped"):
            self.written.difference_update(reclaimed)
        if outcome in ("clean_zero", "clean", "wiped"):
            self.forked.difference_update(reclaimed)
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

    @precondition(lambda self: self.has("live"))
    @rule(data=st.data(), units=st.integers(0, 5), gap=st.booleans(), zero=st.booleans())
    def move(self, data: st.DataObject, units: int, gap: bool, zero: bool) -> None:
        extent = self.choose(data, "live")
        if extent.size % self.unit:
            return
        self.edge += gap * 64 * PAGE
        size = extent.size + units * self.unit
        pages = pages_of(self.edge, extent.size)
        if self.forked.intersection(pages_of(extent.begin, extent.size)):
            self.forked.update(pages)
        self.written.update(pages if zero else pages_of(self.edge, size))
        self.held[self.edge] = self.held.pop(extent.begin)
        self.core.move(extent.begin, self.edge, size, zero)
        self.model.move(extent, self.edge, size, zero)
        self.edge += size
        self.covered += units * self.unit

    @rule(ticks=st.integers(0, 60))
    def wait(self, ticks: int) -> None:
        self.now += ticks * TICK

    @rule()
    def fork_and_be_the_parent(self) -> None:
        self.core.mark_shared()
        self.model.mark_shared()
        # The child gives up what a reclaim can take; of huge pages it has all or nothing.
        refused = {e.begin: e.size for e in self.model.all if e.state == "warm" and not e.queue}
        for begin, size in (self.held | refused).items():
            low = begin // self.unit * self.unit
            high = -(-(begin + size) // self.unit) * self.unit
            self.forked.update(pages_of(low, high - low))

    @rule()
    def requeue(self) -> None:
        self.core.requeue()
        self.model.requeue()

    @rule()
    def fork_and_be_the_child(self) -> None:
        self.requeue()
        while (extent := self.next("any", 1 << 40)) is not None:
            self.become(extent, "clean_zero")

    @invariant()
    def both_agree(self) -> None:
        told = self.core.extents()
        expected = sorted(
            (e.begin, e.size, e.state, e.zero, e.shared, e.since, e.oldest, e.serial)
            for e in self.model.all
        )
        assert told == expected
        for state in STATES:
            assert self.core.bytes(state) == self.model.bytes(state)  # type: ignore[arg-type]
        assert self.core.fenced() == self.model.fenced()
        assert self.core.fragments() == self.model.fragments()
        assert self.core.regions() == self.model.regions()
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

    @invariant()
    def blocks_stay_as_they_are_until_they_end(self) -> None:
        assert {e.begin: e.size for e in self.model.all if in_use(e)} == self.held

    @invariant()
    def only_fragments_are_less_than_whole_units(self) -> None:
        used = {e.begin // self.unit for e in self.model.all if in_use(e)}
        used |= {(e.end - 1) // self.unit for e in self.model.all if in_use(e)}
        fragments = sorted(
            (e for e in self.model.all if self.model.is_fragment(e)), key=lambda e: e.begin
        )
        for extent in self.model.all:
            if not in_use(extent) and extent not in fragments:
                assert extent.begin % self.unit == extent.size % self.unit == 0
        for fragment in fragments:
            assert fragment.begin // self.unit == (fragment.end - 1) // self.unit
            assert fragment.begin // self.unit in used
            assert fragment.queue is None
        for low, high in itertools.pairwise(fragments):
            assert low.end < high.begin or high.begin % self.unit == 0

    @invariant()
    def what_is_shared_is_so_in_whole_units(self) -> None:
        shared: dict[int, bool] = {}
        for extent in self.model.all:
            for unit in range(extent.begin // self.unit, -(-extent.end // self.unit)):
                assert shared.setdefault(unit, extent.shared) == extent.shared

    @invariant()
    def nothing_that_a_child_has_is_warm_for_good(self) -> None:
        for extent in self.model.queues["young"] + self.model.queues["aged"]:
            assert self.forked.isdisjoint(pages_of(extent.begin, extent.size))

    @invariant()
    def what_ends_has_the_nodes_that_it_may_need(self) -> None:
        spare, reserved = self.core.nodes()
        assert spare >= reserved == self.model.reserved()


def pages_of(begin: int, size: int) -> range:
    return range(begin, begin + size, PAGE)


def in_use(extent: Extent) -> bool:
    return extent.state == "live" or extent.queue == "fenced"


class EndlessExtentMaps(ExtentMaps):
    decay = float("inf")


class ImmediateExtentMaps(ExtentMaps):
    decay = 0.0


class HugeExtentMaps(ExtentMaps):
    unit = HUGE


class EndlessHugeExtentMaps(HugeExtentMaps):
    decay = float("inf")


class ImmediateHugeExtentMaps(HugeExtentMaps):
    decay = 0.0


MACHINES = [
    ExtentMaps, EndlessExtentMaps, ImmediateExtentMaps,
    HugeExtentMaps, EndlessHugeExtentMaps, ImmediateHugeExtentMaps,
]  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_core_and_model_agree(machine: type[ExtentMaps]) -> None:
    chosen = settings(max_examples=100, stateful_step_count=60)
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", MACHINES)
def test_core_and_model_agree_for_a_million_steps(
    machine: type[ExtentMaps], capsys: pytest.CaptureFixture[str]
) -> None:
    """A million steps over all machines together, each its part."""
    wanted = 1_000_000 // len(MACHINES) + 1
    done = 0

    class Counted(machine):  # type: ignore[misc, valid-type]
        @invariant()
        def count(self) -> None:
            nonlocal done
            done += 1

    # Not the same examples each time, which is what a profile for continuous integration means.
    chosen = settings(max_examples=200, stateful_step_count=100, derandomize=False)
    while done < wanted:
        run_state_machine_as_test(Counted, settings=chosen)
        with capsys.disabled():
            print(f"\r{machine.__name__}: {done:,} of {wanted:,} steps ", end="", flush=True)
    with capsys.disabled():
        print()


def told(extents: "_core.ExtentMap") -> list[tuple[int, int, str]]:
    """Begin and size in pages, and state, of every extent from 1 GiB on."""
    return [
        ((begin - (1 << 30)) // PAGE, size // PAGE, state)
        for begin, size, state, *_ in extents.extents()
    ]


def take_block(extents: "_core.ExtentMap", pages: int) -> tuple[int, str, bool]:
    found = extents.allocate(pages * PAGE, 64, True)
    assert found is not None
    return found


def test_the_rest_of_the_last_unit_serves_small_blocks_and_is_reclaimed_with_the_last_one() -> None:
    extents = _core.ExtentMap(HUGE, 10.0, PAGE)
    extents.add_region(1 << 30, 4 * HUGE, True)
    assert extents.allocate(PAGE, 64, True) is None  # whole units are not cut for small blocks
    large, state, zero = take_block(extents, 13)
    assert (state, zero) == ("clean", True)
    assert told(extents) == [(0, 13, "live"), (13, 3, "warm"), (16, 16, "clean")]
    assert extents.fragments() == extents.bytes("warm") == 3 * PAGE
    assert extents.take("any", 0.0, 1 << 40) is None

    small, state, zero = take_block(extents, 2)
    assert (small - large, state, zero) == (13 * PAGE, "warm", True)
    # The large block's first unit goes, its part of the second stays for as long as the small one.
    assert extents.release(large, "pending", 1.0, 1) == (large, HUGE)
    assert told(extents) == [
        (0, 8, "pending"), (8, 5, "warm"), (13, 2, "live"), (15, 1, "warm"), (16, 16, "clean"),
    ]  # fmt: skip
    assert extents.fragments() == 6 * PAGE
    assert extents.release(small, "pending", 2.0, 2) == (large + HUGE, HUGE)
    assert told(extents) == [(0, 8, "pending"), (8, 8, "pending"), (16, 16, "clean")]
    assert extents.fragments() == 0
    assert not extents.settled(2)


def test_a_small_block_ends_as_a_fragment_while_the_large_one_lives() -> None:
    extents = _core.ExtentMap(HUGE, 10.0, PAGE)
    extents.add_region(1 << 30, 4 * HUGE, True)
    large = take_block(extents, 13)[0]
    small = [take_block(extents, 1)[0] for _ in range(3)]
    assert extents.release(small[0], "reclaiming", 1.0, 1) is None
    assert extents.release(small[2], "reclaiming", 1.0, 2) is None
    assert told(extents)[1:4] == [(13, 1, "warm"), (14, 1, "live"), (15, 1, "warm")]
    assert extents.release(small[1], "reclaiming", 1.0, 3) is None
    assert told(extents)[1:3] == [(13, 3, "warm"), (16, 16, "clean")]
    assert extents.settled(3)
    assert take_block(extents, 3)[2] is False  # somebody wrote there
    assert extents.release(large, "reclaiming", 2.0, 4) == (large, HUGE)


def test_small_blocks_take_the_smallest_fragment_that_holds_them() -> None:
    extents = _core.ExtentMap(HUGE, 10.0, PAGE)
    extents.add_region(1 << 30, 8 * HUGE, True)
    for pages in (10, 13, 11):
        take_block(extents, pages)  # leaves 6, 3 and 5
    places = [(take_block(extents, pages)[0] - (1 << 30)) // PAGE for pages in (3, 4, 1)]
    assert places == [16 + 13, 32 + 11, 32 + 15]


def test_fragments_end_where_their_unit_ends() -> None:
    extents = _core.ExtentMap(HUGE, 10.0, PAGE)
    extents.add_region(1 << 30, 4 * HUGE, True)
    first, large, small = (take_block(extents, pages)[0] for pages in (8, 13, 1))
    extents.release(large, "warm", 1.0, 1)
    extents.release(first, "warm", 1.0, 2)
    take_block(extents, 13)  # the first two units, the fragment of which meets that of the third
    fragments = [(13, 3, "warm"), (16, 5, "warm"), (21, 1, "live"), (22, 2, "warm")]
    assert told(extents)[1:5] == fragments
    for serial, pages in enumerate((3, 5), 3):
        block = take_block(extents, pages)[0]
        assert extents.release(block, "warm", 2.0, serial) is None
        assert told(extents)[1:5] == fragments
    assert extents.release(small, "warm", 3.0, 5) == (first + 2 * HUGE, HUGE)


def test_a_fenced_block_keeps_its_unit_as_it_is() -> None:
    extents = _core.ExtentMap(HUGE, 10.0, PAGE)
    extents.add_region(1 << 30, 4 * HUGE, True)
    large, small = take_block(extents, 13)[0], take_block(extents, 3)[0]
    extents.park(large, 1.0, 1)
    assert extents.release(small, "warm", 2.0, 2) is None
    assert told(extents) == [(0, 13, "pending"), (13, 3, "warm"), (16, 16, "clean")]
    assert (extents.fenced(), extents.bytes("pending")) == (13 * PAGE, 13 * PAGE)
    assert not extents.settled(1)
    assert extents.unfence(large, "warm", 3.0) == (large, 2 * HUGE)
    assert told(extents) == [(0, 16, "warm"), (16, 16, "clean")]
    assert extents.settled(2)


def test_what_a_child_may_have_is_reclaimed_before_it_is_warm_again() -> None:
    extents = _core.ExtentMap(HUGE, 10.0, PAGE)
    extents.add_region(1 << 30, 4 * HUGE, True)
    before, small = take_block(extents, 13)[0], take_block(extents, 1)[0]
    extents.mark_shared()
    after = take_block(extents, 8)[0]
    assert extents.release(after, "warm", 1.0, 1) == (after, HUGE)
    assert extents.release(before, "warm", 1.0, 2) == (before, HUGE)
    # A block cut from a unit that the child has shares it too.
    again = take_block(extents, 5)[0]
    assert extents.release(again, "warm", 2.0, 3) is None
    assert extents.release(small, "warm", 2.0, 4) == (before + HUGE, HUGE)
    assert told(extents) == [
        (0, 8, "pending"),
        (8, 8, "pending"),
        (16, 8, "warm"),
        (24, 8, "clean"),
    ]
    while (taken := extents.take("pending", 3.0, 1 << 40)) is not None:
        extents.finish(taken[0], "clean_zero")
    block = take_block(extents, 13)[0]
    assert extents.release(block, "warm", 3.0, 5) == (before, 3 * HUGE)


def test_ends_need_no_more_than_what_was_set_aside_for_them() -> None:
    count = 500
    extents = _core.ExtentMap(HUGE, 10.0, PAGE)
    extents.add_region((1 << 30) + HUGE, 4 * (count + 1) * HUGE, True)
    large = []
    for done in range(1, count + 1):
        # Aligned, so that something is left on every side.
        found = extents.allocate(13 * PAGE, 4 * HUGE, True)
        assert found is not None
        large.append(found[0])
        spare, reserved = extents.nodes()
        assert spare >= reserved == done
    small = [take_block(extents, 3)[0] for _ in range(count)]
    spare, reserved = extents.nodes()
    assert spare >= reserved == count
    for serial, begin in enumerate(large):
        extents.park(begin, 1.0, serial)
    for begin in large:
        extents.unfence(begin, "pending", 1.0)
    assert extents.nodes() == (spare - count, 0)
    assert extents.fragments() == 5 * count * PAGE
    for serial, begin in enumerate(small, count):
        extents.release(begin, "warm", 2.0, serial)
    assert extents.fragments() == 0
    assert extents.bytes("warm") == extents.bytes("pending") == count * HUGE
