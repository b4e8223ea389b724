"""Which release policy fits: what each leaves to pay, and what that wins over NumPy's memory."""

from __future__ import annotations

from dataclasses import dataclass

from bigmem.profile.costs import MOST_PAGES, Measured, PageCosts
from bigmem.profile.machine import Machine
from bigmem.profile.wording import ms

MEANS = {
    "system": "NumPy's own: first touch, then freed on the spot with the GIL held",
    "mapped": "first touch, then unmapped on the spot without the GIL",
    "dontneed": "first touch, then advised away on the spot without the GIL",
    "deferred": "first touch; given back in the background",
    "recycle": "nothing once the pages are warm; idle ones go back in the background",
}
"""What a program's own thread pays under each policy, by its name for `bigmem.make`."""

# A gain below this share of an array's whole time is nothing to change a program for.
_WORTH = 0.1
# Memory is short when less than one part in so many of it is left.
_SHORT_PART = 8


@dataclass(frozen=True, slots=True)
class Tax:
    """What a policy leaves to pay, beyond writing an array, on the program's own thread.

    In ms per GiB; `None` where the regime was not measured.
    """

    policy: str
    small_ms: float | None
    huge_ms: float | None
    means: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which policy fits in one page regime, what it wins over NumPy's own memory, and why.

    `gain_ms` is per GiB; `gain_share` is its part of making, filling and dropping an array.
    """

    pages: str
    policy: str
    gain_ms: float
    gain_share: float
    text: str


def is_short(limit: int | None, left: int | None) -> bool:
    """Whether so little of the memory is left that idle memory should not be kept."""
    return limit is not None and left is not None and left < limit // _SHORT_PART


def pages_of_numpy(machine: Machine, measured: Measured) -> str:
    """The regime that large arrays of NumPy's are in, ``"small"`` or ``"huge"``."""
    share = measured.numpy_huge_share
    if share is None:  # unmeasured, but it asks for huge pages unless told otherwise
        asks = machine.numpy_huge_variable != "0"
        return "huge" if asks and measured.huge is not None else "small"
    return "huge" if share >= MOST_PAGES else "small"


def tax_of(policy: str, costs: PageCosts | None) -> float | None:
    """What a policy leaves to pay in ms per GiB; `None` if that was not measured."""
    if costs is None:
        return None
    if policy == "recycle":
        return 0.0
    giving_back = {
        "system": _freeing(costs),
        "mapped": costs.munmap_ms,
        "dontneed": costs.dontneed_ms,
        "deferred": 0.0,
    }[policy]
    return None if giving_back is None else costs.first_touch_ms + giving_back


def judge(pages: str, costs: PageCosts, machine: Machine) -> Verdict:
    """Choose a policy for one regime: the largest gain, of those that the machine has room for."""
    short = is_short(machine.limit_bytes, machine.left_bytes)
    several = machine.cores > 1
    best = "recycle"
    if short:
        best = "deferred" if several else "dontneed"
    gain = _Gain.of(best, costs)
    if gain.share < _WORTH:
        best, gain = "system", _Gain(0.0, 0.0)
    reason = _reason(best, costs, short, several)
    return Verdict(pages, best, gain.milliseconds, gain.share, f"{_price(costs)} {reason}")


@dataclass(frozen=True, slots=True)
class _Gain:
    """What a policy wins over NumPy's own memory, per GiB, and as a share of an array's time."""

    milliseconds: float
    share: float

    @classmethod
    def of(cls, policy: str, costs: PageCosts) -> _Gain:
        now = costs.first_touch_ms + _freeing(costs)
        tax = tax_of(policy, costs)
        won = 0.0 if tax is None else max(now - tax, 0.0)
        whole = now + costs.warm_fill_ms
        return cls(won, won / whole if whole else 0.0)

    def __str__(self) -> str:
        return f"{ms(self.milliseconds)} per GiB ({self.share:.0%})"


def _freeing(costs: PageCosts) -> float:
    return costs.munmap_ms if costs.numpy_free_ms is None else costs.numpy_free_ms


def _price(costs: PageCosts) -> str:
    freeing = _freeing(costs)
    return (
        f"A GiB of new arrays costs NumPy {ms(costs.first_touch_ms + freeing)} beyond "
        f"{ms(costs.warm_fill_ms)} for writing it: {ms(costs.first_touch_ms)} to touch it first, "
        f"{ms(freeing)} to free it."
    )


def _reason(best: str, costs: PageCosts, short: bool, several: bool) -> str:
    recycle, deferred = _Gain.of("recycle", costs), _Gain.of("deferred", costs)
    nothing = "There is nothing to win here worth changing a program for."
    if short:
        room = f"Memory is short: with more of it, recycle would win {recycle}."
        if best == "system":
            return f"{room} {nothing}"
        return f"{room} {best} keeps nothing, and wins {_Gain.of(best, costs)}."
    if best == "system":
        return nothing
    reuse = f"Where arrays of like size come and go, recycle wins {recycle}."
    if not several:
        return f"{reuse} deferred wins nothing: with one core, the background takes your time."
    if deferred.share < _WORTH:
        return f"{reuse} Without reuse there is little to win: deferred wins {deferred}."
    return f"{reuse} Where arrays are not made again, deferred wins {deferred}."
