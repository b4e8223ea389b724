"""The reference model of the core's extent map.

Written to be read, and searched linearly. The core's map must agree with it in every detail,
floating point included; tests drive both with the same operations and a clock of their own.

What is in use consists of whole pages; what may be reclaimed consists of whole units, because
returning a part of a huge page frees nothing. What is left of a unit that is in use in part is a
*fragment*: warm, never reclaimed, and there for blocks smaller than a unit. It becomes a part of a
whole unit again when the last block in its unit ends.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

State = Literal["live", "pending", "reclaiming", "warm", "lazy", "clean"]
Kind = Literal["pending", "due", "warm", "any"]
Outcome = Literal["clean_zero", "clean", "lazy", "refused", "wiped"]

ALIGNMENT_TRIES = 8
AGEING_PER_CALL = 64
TAKEN_PER_CALL = 64


@dataclass(eq=False, slots=True)
class Extent:
    """A contiguous range in one state.

    Attributes
    ----------
    begin, size
        Address of the first byte, and length in bytes; multiples of the map's page.
    state
        What the range is doing.
    region
        Which region it is part of; only neighbours within one region are merged.
    zero
        Whether every byte is known to be zero.
    shared
        Whether a child of fork may still have these pages too.
    since, oldest
        When it was released: of merged extents the latest and the earliest time. Fragments have
        no age.
    serial
        Its place in the order of releases, of merged extents the lowest.
    queue
        Where it waits: ``"pending"``, ``"fenced"``, ``"reclaiming"``, ``"young"`` or ``"aged"``
        (warm, before and after half the decay time), ``"lazy"``, or nowhere.
    """

    begin: int
    size: int
    state: State
    region: int
    zero: bool = False
    shared: bool = False
    since: float = 0.0
    oldest: float = 0.0
    serial: int = 0
    queue: str | None = None

    @property
    def end(self) -> int:
        """Address past the last byte."""
        return self.begin + self.size


@dataclass
class Extents:
    """Which extents an arena has, in which states, and what happens to them next.

    Parameters
    ----------
    unit
        Bytes that can be reclaimed: regions and extents not in use are multiples of it.
    decay
        Seconds within which warm extents go back; infinity for never.
    page
        Bytes that can be allocated: every size is a multiple of it.
    """

    unit: int
    decay: float
    page: int = 4096
    all: list[Extent] = field(default_factory=list)
    queues: dict[str, list[Extent]] = field(
        default_factory=lambda: {
            name: [] for name in ("pending", "fenced", "reclaiming", "young", "aged", "lazy")
        }
    )
    _regions: int = 0
    _credit: float = 0.0
    _credited: float = 0.0

    def add_region(self, begin: int, size: int, zero: bool) -> None:
        """A new range, all of it clean."""
        self._regions += 1
        self.all.append(Extent(begin, size, "clean", self._regions, zero))

    def remove(self, extent: Extent) -> None:
        """The range is gone; what lies on either side are separate regions from now on."""
        self._detach(extent)
        self._unqueue(extent)
        self.all.remove(extent)

    def move(self, extent: Extent, begin: int, size: int, zero: bool) -> None:
        """A live extent of whole units leaves its range for the beginning of a new region."""
        self._detach(extent)
        self._regions += 1
        extent.begin, extent.region = begin, self._regions
        if size > extent.size:
            self.all.append(Extent(extent.end, size - extent.size, "clean", extent.region, zero))

    def regions(self) -> int:
        """How many regions there are."""
        return len({e.region for e in self.all})

    def allocate(
        self, size: int, alignment: int, clean: bool = True
    ) -> tuple[Extent, State, bool] | None:
        """Best fit: the extent, its former state and zeroness.

        Less than a unit comes from fragments alone. The rest comes, on a border between units,
        from warm before lazy before clean extents, and leaves a fragment where its last unit is
        not full.
        """
        taken = size
        if size < self.unit:
            extent = self._fit(self._fragments(), size, alignment, self.page)
        else:
            taken = -(-size // self.unit) * self.unit
            states: tuple[State, ...] = ("warm", "lazy", "clean") if clean else ("warm", "lazy")
            fits = (self._fit(self._whole(s), taken, alignment, self.unit) for s in states)
            extent = next((e for e in fits if e is not None), None)
        if extent is None:
            return None
        self._carve(extent, -(-extent.begin // alignment) * alignment, taken)
        if size < taken:
            self._make_fragment(self._cut(extent, extent.begin + size))
        state, zero = extent.state, extent.zero
        extent.state, extent.zero = "live", False
        return extent, state, zero

    def release(self, extent: Extent, to: State, now: float, serial: int) -> Extent | None:
        """A live extent becomes warm (pending if shared), pending or reclaiming.

        Returns the extent that its whole units are part of, or `None` if nothing but a fragment
        is left.
        """
        self._unqueue(extent)
        return self._end_life(extent, to, now, serial)

    def grow(self, extent: Extent, size: int, clean: bool = True) -> int | None:
        """A live extent becomes larger where it is: how many clean bytes it takes.

        `None` if what follows does not let it: that must be warm or lazy, or clean if `clean`
        permits, in no more pieces than one call may look at, and as shared as the extent.
        """
        # A block begins on a border between units, or lies within one.
        if extent.begin % self.unit and extent.begin % self.unit + size > self.unit:
            return None
        states = ("warm", "lazy", "clean") if clean else ("warm", "lazy")
        end = extent.begin + size
        taken = [e for e in self._following(extent) if e.begin < end]
        if (
            not 0 < len(taken) <= TAKEN_PER_CALL
            or taken[-1].end < end
            or any(e.state not in states or e.shared != extent.shared for e in taken)
        ):
            return None
        fresh = 0
        for other in taken:
            stop = min(other.end, -(-end // self.unit) * self.unit)
            if self.is_fragment(other):
                stop = min(other.end, end)
            if other.state == "clean":
                fresh += stop - other.begin
            self._carve(other, other.begin, stop - other.begin)
            if stop > end:
                self._make_fragment(self._cut(other, end))
            self._absorb(extent, other)
        return fresh

    def shrink(
        self, extent: Extent, size: int, to: State, now: float, serial: int
    ) -> Extent | None:
        """A live extent keeps its first bytes; the rest ends as in `release`."""
        rest = self._cut(extent, extent.begin + size)
        # What it leaves of the unit in which it ends now is a fragment.
        border = -(-rest.begin // self.unit) * self.unit
        if rest.begin < border < rest.end:
            beyond = self._cut(rest, border)
            self._reduce(rest)
            rest = beyond
        return self._end_life(rest, to, now, serial)

    def _end_life(self, extent: Extent, to: State, now: float, serial: int) -> Extent | None:
        if not self._reduce(extent):
            return None
        if to == "warm" and extent.shared:
            to = "pending"
        extent.since = extent.oldest = now
        extent.serial = serial
        self._move(extent, to)
        return self._merge_around(extent) if to == "warm" else extent

    def park(self, extent: Extent, now: float, serial: int) -> None:
        """A live extent becomes pending and stays so until `unfence`."""
        extent.since = extent.oldest = now
        extent.serial = serial
        extent.state = "pending"
        self._enqueue(extent, "fenced")

    def unfence(self, extent: Extent, to: State, now: float) -> Extent | None:
        """The fences are done; the extent goes where its release would have put it."""
        left = self.release(extent, to, now, extent.serial)
        if left is not None and left.state == "pending":
            self._move_to_front(left)
        return left

    def take(self, kind: Kind, now: float, limit: int) -> Extent | None:
        """The next extent to reclaim, cut to at most `limit` bytes; it is reclaiming now."""
        extent = next(iter(self.queues["pending"]), None)
        if extent is None and kind == "due":
            extent = self._due(now, limit)
        if extent is None and kind in ("warm", "any"):
            idle = self.queues["aged"] + self.queues["young"]
            extent = next(iter(idle + (self.queues["lazy"] if kind == "any" else [])), None)
        if extent is None:
            return None
        if extent.size > limit:
            self._carve(extent, extent.begin, limit)
        self._move(extent, "reclaiming")
        return extent

    def finish(self, extent: Extent, outcome: Outcome) -> Extent:
        """What became of a reclaim; returns the extent that the range is part of now."""
        if outcome == "refused":
            self._unqueue(extent)
            extent.state, extent.zero = "warm", False
            return extent
        extent.zero = outcome in ("clean_zero", "wiped")
        extent.shared = extent.shared and outcome == "lazy"
        kept: dict[Outcome, State] = {"lazy": "lazy", "wiped": "warm"}
        self._move(extent, kept.get(outcome, "clean"))
        return self._merge_around(extent)

    def requeue(self) -> None:
        """Reclaims under way start over: those who did them are gone."""
        while self.queues["reclaiming"]:
            self._move_to_front(self.queues["reclaiming"][0])

    def mark_shared(self) -> None:
        """A child of fork has what it cannot give up at once."""
        for extent in self.all:
            stuck = extent.state == "warm" and extent.queue is None
            if extent.state == "live" or extent.queue == "fenced" or stuck:
                extent.shared = True

    def settled(self, serial: int) -> bool:
        """Whether nothing released up to `serial` is pending or reclaiming."""
        return all(e.serial > serial for e in self.all if e.state in ("pending", "reclaiming"))

    def bytes(self, state: State) -> int:
        """How many bytes are in that state."""
        return sum(e.size for e in self.all if e.state == state)

    def fenced(self) -> int:
        """How many of the pending bytes wait for a fence."""
        return sum(e.size for e in self.queues["fenced"])

    def fragments(self) -> int:
        """How many of the warm bytes are fragments."""
        return sum(e.size for e in self._fragments())

    def reserved(self) -> int:
        """How many extents in use may be cut in two by their end."""
        return sum(
            (e.state == "live" or e.queue == "fenced")
            and e.size > self.unit
            and e.size % self.unit > 0
            for e in self.all
        )

    def is_fragment(self, extent: Extent) -> bool:
        """Whether the extent is what is left of a unit in use."""
        return extent.state == "warm" and extent.size < self.unit

    def _fragments(self) -> list[Extent]:
        return [e for e in self.all if self.is_fragment(e)]

    def _whole(self, state: State) -> list[Extent]:
        return [e for e in self.all if e.state == state and not self.is_fragment(e)]

    def _fit(
        self, extents: list[Extent], size: int, alignment: int, granularity: int
    ) -> Extent | None:
        candidates = sorted((e for e in extents if e.size >= size), key=lambda e: (e.size, e.begin))
        for extent in candidates[:ALIGNMENT_TRIES]:
            if -(-extent.begin // alignment) * alignment + size <= extent.end:
                return extent
        if len(candidates) < ALIGNMENT_TRIES:
            return None
        # After so many misses only what has room at any address is looked at.
        ample = size + alignment - granularity
        return next((e for e in candidates if e.size >= ample), None)

    def _carve(self, extent: Extent, begin: int, size: int) -> None:
        """Cut the extent down; the rest on either side keeps state, age and place."""
        for low, high in ((extent.begin, begin), (begin + size, extent.end)):
            if low == high:
                continue
            rest = replace(extent, begin=low, size=high - low)
            self.all.append(rest)
            if extent.queue is not None:
                queue = self.queues[extent.queue]
                queue.insert(queue.index(extent) + (low > begin), rest)
        extent.begin, extent.size = begin, size
        self._unqueue(extent)

    def _detach(self, extent: Extent) -> None:
        self._regions += 1
        for other in self._following(extent):
            other.region = self._regions

    def _following(self, extent: Extent) -> list[Extent]:
        """What lies behind it in its region, in the order of addresses."""
        behind = (e for e in self.all if e.region == extent.region and e.begin > extent.begin)
        return sorted(behind, key=lambda e: e.begin)

    def _cut(self, extent: Extent, at: int) -> Extent:
        """Cut off the end of an extent that waits nowhere."""
        end = replace(extent, begin=at, size=extent.end - at)
        self.all.append(end)
        extent.size -= end.size
        return end

    def _make_fragment(self, extent: Extent) -> None:
        extent.state = "warm"
        extent.since = extent.oldest = 0.0
        extent.serial = 0

    def _reduce(self, extent: Extent) -> bool:
        """Leave, of an extent that ends, the units that nothing else uses; whether there are any.

        Its part of another unit becomes a fragment.
        """
        whole = extent.size // self.unit * self.unit
        if whole == extent.size:
            return True
        part = self._cut(extent, extent.begin + whole) if whole else extent
        border = part.begin // self.unit * self.unit
        others = [
            e for e in self.all if e is not part and e.begin < border + self.unit and e.end > border
        ]
        fragments = [e for e in others if self.is_fragment(e)]
        if len(fragments) < len(others):
            for other in fragments:
                if other.end == part.begin or other.begin == part.end:
                    self._absorb(part, other)
            self._make_fragment(part)
            return whole > 0
        for other in fragments:
            self._absorb(part, other)
        if whole:
            self._absorb(extent, part)
        return True

    def _absorb(self, extent: Extent, other: Extent) -> None:
        """Make the other a part of the extent; both wait nowhere, and agree on being shared."""
        self.all.remove(other)
        extent.begin = min(extent.begin, other.begin)
        extent.size += other.size
        extent.zero = extent.zero and other.zero
        extent.serial = min(extent.serial, other.serial)
        extent.since = max(extent.since, other.since)
        extent.oldest = min(extent.oldest, other.oldest)

    def _merge_around(self, extent: Extent) -> Extent:
        for edge in ("below", "above"):
            other = next(
                (
                    e
                    for e in self.all
                    if e.region == extent.region
                    and (e.end == extent.begin if edge == "below" else e.begin == extent.end)
                ),
                None,
            )
            if other is None or not self._mergeable(extent, other):
                continue
            queue = extent.queue
            self._unqueue(extent)
            self._unqueue(other)
            self._absorb(extent, other)
            if queue is not None:
                self._enqueue(extent, queue)
        return extent

    def _mergeable(self, one: Extent, other: Extent) -> bool:
        if one.state != other.state:
            return False
        if one.state == "clean":
            return True
        if one.state == "lazy":
            return one.shared == other.shared
        return (
            one.state == "warm"
            and one.queue is not None
            and other.queue is not None
            and max(one.since, other.since) - min(one.oldest, other.oldest) <= self.decay / 4
        )

    def _due(self, now: float, limit: int) -> Extent | None:
        """The oldest warm extent, if the pace of the decay or its own deadline wants it back."""
        self._grow_old(now)
        aged = self.queues["aged"]
        if not aged:
            return None
        total = float(sum(e.size for e in aged))
        moment = sum(float(e.size) * e.since for e in aged)
        left = moment / total + self.decay - self._credited
        earned = total / left * (now - self._credited) if left > 0 else total
        self._credit = min(self._credit + earned, total)
        self._credited = now
        extent = aged[0]
        size = float(min(extent.size, limit))
        if self._credit < size and now - extent.since < self.decay:
            return None
        self._credit = max(self._credit - size, 0.0)
        return extent

    def _grow_old(self, now: float) -> None:
        for extent in self.queues["young"][:AGEING_PER_CALL]:
            if now - extent.since < self.decay / 2:
                return
            if not self.queues["aged"]:
                self._credit, self._credited = 0.0, now
            self._enqueue(extent, "aged")

    def _move(self, extent: Extent, state: State) -> None:
        extent.state = state
        queue = {"warm": "young"}.get(state, state)
        if queue in self.queues:
            self._enqueue(extent, queue)
        else:
            self._unqueue(extent)

    def _move_to_front(self, extent: Extent) -> None:
        """Make it the first of the pending, which stay in the order of their serials."""
        self._unqueue(extent)
        pending = self.queues["pending"]
        if pending:
            extent.serial = min(extent.serial, pending[0].serial)
        pending.insert(0, extent)
        extent.state, extent.queue = "pending", "pending"

    def _enqueue(self, extent: Extent, queue: str) -> None:
        self._unqueue(extent)
        self.queues[queue].append(extent)
        extent.queue = queue

    def _unqueue(self, extent: Extent) -> None:
        if extent.queue is not None:
            self.queues[extent.queue].remove(extent)
            extent.queue = None
