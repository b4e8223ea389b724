"""The reference model of the core's extent map.

Written to be read, and searched linearly. The core's map must agree with it in every detail,
floating point included; tests drive both with the same operations and a clock of their own.
"""

from dataclasses import dataclass, field
from typing import Literal

State = Literal["live", "pending", "reclaiming", "warm", "lazy", "clean"]
Kind = Literal["pending", "due", "warm", "any"]
Outcome = Literal["clean_zero", "clean", "lazy", "refused"]

ALIGNMENT_TRIES = 8
AGEING_PER_CALL = 64


@dataclass(eq=False, slots=True)
class Extent:
    """A contiguous range in one state.

    Attributes
    ----------
    begin, size
        Address of the first byte, and length in bytes; multiples of the map's unit.
    state
        What the range is doing.
    region
        Which region it is part of; only neighbours within one region are merged.
    zero
        Whether every byte is known to be zero.
    since, oldest
        When it was released: of merged extents the latest and the earliest time.
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
        Bytes that every size is a multiple of.
    decay
        Seconds within which warm extents go back; infinity for never.
    """

    unit: int
    decay: float
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
        self._regions += 1
        for other in self.all:
            if other.region == extent.region and other.begin > extent.begin:
                other.region = self._regions
        self._unqueue(extent)
        self.all.remove(extent)

    def allocate(
        self, size: int, alignment: int, clean: bool = True
    ) -> tuple[Extent, State, bool] | None:
        """Best fit, warm before lazy before clean: the extent, its former state and zeroness."""
        states: tuple[State, ...] = ("warm", "lazy", "clean") if clean else ("warm", "lazy")
        for state in states:
            if (extent := self._fit(state, size, alignment)) is not None:
                self._carve(extent, -(-extent.begin // alignment) * alignment, size)
                zero = extent.zero
                self._unqueue(extent)
                extent.state, extent.zero = "live", False
                return extent, state, zero
        return None

    def release(self, extent: Extent, to: State, now: float, serial: int) -> None:
        """A live extent becomes warm, pending or reclaiming."""
        extent.since = extent.oldest = now
        extent.serial = serial
        self._move(extent, to)
        if to == "warm":
            self._merge_around(extent)

    def park(self, extent: Extent, now: float, serial: int) -> None:
        """A live extent becomes pending and stays so until `unfence`."""
        extent.since = extent.oldest = now
        extent.serial = serial
        extent.state = "pending"
        self._enqueue(extent, "fenced")

    def unfence(self, extent: Extent, to: State, now: float) -> None:
        """The fences are done; the extent goes where its release would have put it."""
        if to != "pending":
            self.release(extent, to, now, extent.serial)
            return
        extent.since = extent.oldest = now
        self._unqueue(extent)
        pending = self.queues["pending"]
        if pending:
            extent.serial = min(extent.serial, pending[0].serial)
        pending.insert(0, extent)
        extent.state, extent.queue = "pending", "pending"

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
        extent.zero = outcome == "clean_zero"
        self._move(extent, "lazy" if outcome == "lazy" else "clean")
        return self._merge_around(extent)

    def requeue(self) -> None:
        """Reclaims under way start over: those who did them are gone."""
        while self.queues["reclaiming"]:
            extent = self.queues["reclaiming"][0]
            self.unfence(extent, "pending", extent.since)

    def settled(self, serial: int) -> bool:
        """Whether nothing released up to `serial` is pending or reclaiming."""
        return all(e.serial > serial for e in self.all if e.state in ("pending", "reclaiming"))

    def bytes(self, state: State) -> int:
        """How many bytes are in that state."""
        return sum(e.size for e in self.all if e.state == state)

    def _fit(self, state: State, size: int, alignment: int) -> Extent | None:
        candidates = sorted(
            (e for e in self.all if e.state == state and e.size >= size),
            key=lambda e: (e.size, e.begin),
        )
        for extent in candidates[:ALIGNMENT_TRIES]:
            if -(-extent.begin // alignment) * alignment + size <= extent.end:
                return extent
        # After so many misses only what has room at any address is looked at.
        return next(
            (
                e
                for e in candidates
                if len(candidates) >= ALIGNMENT_TRIES and e.size >= size + alignment - self.unit
            ),
            None,
        )

    def _carve(self, extent: Extent, begin: int, size: int) -> None:
        """Cut the extent down; the rest on either side keeps state, age and place."""
        for low, high in ((extent.begin, begin), (begin + size, extent.end)):
            if low == high:
                continue
            rest = Extent(
                low, high - low, extent.state, extent.region, extent.zero,
                extent.since, extent.oldest, extent.serial, extent.queue,
            )  # fmt: skip
            self.all.append(rest)
            if extent.queue is not None:
                queue = self.queues[extent.queue]
                queue.insert(queue.index(extent) + (low > begin), rest)
        extent.begin, extent.size = begin, size
        self._unqueue(extent)

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
            self.all.remove(other)
            extent.begin = min(extent.begin, other.begin)
            extent.size += other.size
            extent.zero = extent.zero and other.zero
            extent.serial = min(extent.serial, other.serial)
            extent.since = max(extent.since, other.since)
            extent.oldest = min(extent.oldest, other.oldest)
            if queue is not None:
                self._enqueue(extent, queue)
        return extent

    def _mergeable(self, one: Extent, other: Extent) -> bool:
        if one.state != other.state:
            return False
        if one.state in ("clean", "lazy"):
            return True
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

    def _enqueue(self, extent: Extent, queue: str) -> None:
        self._unqueue(extent)
        self.queues[queue].append(extent)
        extent.queue = queue

    def _unqueue(self, extent: Extent) -> None:
        if extent.queue is not None:
            self.queues[extent.queue].remove(extent)
            extent.queue = None
