"""The memory tax of a program: what was counted, priced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bigmem.profile.costs import HUGE_PAGE, SMALL_PAGE
from bigmem.profile.prices import Prices
from bigmem.profile.record import LineRecord, Record


@dataclass(frozen=True, slots=True)
class LineAccount:
    """What one source line costs; times in seconds.

    Attributes
    ----------
    record
        What was counted.
    fault_s
        What the faults of its blocks cost: an estimate.
    """

    record: LineRecord
    fault_s: float

    @property
    def tax_s(self) -> float:
        """Seconds of allocating, faulting and freeing."""
        return self.record.alloc_s + self.fault_s + self.record.free_s


@dataclass(frozen=True, slots=True)
class Account:
    """The memory tax of a whole run; times in seconds.

    Attributes
    ----------
    wall_s
        From the program's start to its end.
    alloc_s, free_s, gil_free_s
        Time in NumPy's large allocations and in their release; the part of that with the GIL held.
    minor_faults, fault_s
        Of the process from NumPy's import on; what they cost is an estimate.
    outside_fault_s
        The part of `fault_s` of memory other than large arrays.
    lines
        Those with the highest tax first.
    bytes, calls, peak
        Bytes and number of the allocations; the most bytes in use at once.
    fresh
        Bytes by which allocations went beyond the most that had been in use before.
    touch_s
        What the faults would cost if every block were made of fresh pages.
    dontneed_s, unmap_s
        What giving every block back would cost, by advice or by unmapping.
    """

    wall_s: float
    alloc_s: float = 0.0
    free_s: float = 0.0
    gil_free_s: float = 0.0
    minor_faults: int = 0
    fault_s: float = 0.0
    outside_fault_s: float = 0.0
    lines: tuple[LineAccount, ...] = ()
    bytes: int = 0
    calls: int = 0
    peak: int = 0
    fresh: int = 0
    touch_s: float = 0.0
    dontneed_s: float = 0.0
    unmap_s: float = 0.0

    @property
    def tax_s(self) -> float:
        """Seconds of allocating, faulting and freeing."""
        return self.alloc_s + self.fault_s + self.free_s

    @property
    def share(self) -> float:
        """The tax as a part of the wall time; above 1 where threads pay it side by side."""
        return self.tax_s / self.wall_s if self.wall_s > 0 else 0.0


def account(record: Record, prices: Prices, wall_s: float, minor_faults: int) -> Account:
    """Price what was counted.

    Parameters
    ----------
    record
        What the ledger has left.
    prices
        Of this machine.
    wall_s
        Seconds from the program's start to its end.
    minor_faults
        Those of the process while the ledger was kept.
    """
    counted = record.lines if record.tells_huge else _told_apart(record.lines, minor_faults)
    lines = _within(counted, minor_faults)
    priced = [
        LineAccount(line, prices.faults(line.faulted_small, line.faulted_huge)) for line in lines
    ]
    small, huge = (sum(getattr(line, f"touched_{kind}") for line in lines) for kind in _KINDS)
    outside = max(minor_faults - sum(_faults(line) for line in lines), 0.0)
    outside_s = prices.faults(outside, 0)
    return Account(
        wall_s=wall_s,
        alloc_s=sum(line.alloc_s for line in lines),
        free_s=sum(line.free_s for line in lines),
        gil_free_s=sum(line.gil_free_s for line in lines),
        minor_faults=minor_faults,
        fault_s=outside_s + sum(line.fault_s for line in priced),
        outside_fault_s=outside_s,
        lines=tuple(sorted(priced, key=lambda line: line.tax_s, reverse=True)),
        bytes=sum(line.bytes for line in lines),
        calls=sum(line.calls for line in lines),
        peak=record.peak,
        fresh=record.fresh,
        touch_s=prices.faults(small, huge),
        dontneed_s=small * prices.small.dontneed_s + huge * prices.huge.dontneed_s,
        unmap_s=small * prices.small.unmap_s + huge * prices.huge.unmap_s,
    )


def as_json(found: Account) -> dict[str, Any]:
    """The account as the profile's JSON has it."""
    totals = ("wall_s", "tax_s", "alloc_s", "free_s", "minor_faults", "fault_s")
    more = ("gil_free_s", "outside_fault_s", "bytes", "calls", "peak")
    return {
        **{name: getattr(found, name) for name in totals + more},
        "lines": [
            {
                "file": line.record.file,
                "line": line.record.line,
                "calls": line.record.calls,
                "bytes": line.record.bytes,
                "alloc_s": line.record.alloc_s,
                "free_s": line.record.free_s,
                "gil_free_s": line.record.gil_free_s,
                "small_faults": round(line.record.faulted_small),
                "huge_faults": round(line.record.faulted_huge),
                "fault_s": line.fault_s,
            }
            for line in found.lines
        ],
    }


_KINDS = ("small", "huge")


def _faults(line: LineRecord) -> float:
    return line.faulted_small + line.faulted_huge


def _told_apart(lines: Sequence[LineRecord], minor_faults: int) -> list[LineRecord]:
    """Lines whose pages were all counted as small, with the huge ones among them told apart.

    So many bytes came in so many faults: that leaves one share of bytes in huge pages, which is
    taken to be every line's.
    """
    pages = sum(line.faulted_small for line in lines)
    each = HUGE_PAGE // SMALL_PAGE
    huge = min(max((pages - minor_faults) / (each - 1), 0.0), pages / each)
    share = huge * each / pages if pages else 0.0
    return [
        replace(
            line,
            faulted_small=line.faulted_small * (1 - share),
            faulted_huge=line.faulted_small * share / each,
            touched_small=line.touched_small * (1 - share),
            touched_huge=line.touched_small * share / each,
        )
        for line in lines
    ]


def _within(lines: Sequence[LineRecord], minor_faults: int) -> list[LineRecord]:
    """Lines that have no more faults than the process had: theirs are estimates, that is not."""
    found = sum(_faults(line) for line in lines)
    if found <= minor_faults:
        return list(lines)
    scale = minor_faults / found
    return [
        replace(
            line,
            faulted_small=line.faulted_small * scale,
            faulted_huge=line.faulted_huge * scale,
        )
        for line in lines
    ]
