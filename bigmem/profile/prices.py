"""What a page costs on this machine, as far as a profile needs to know."""

from __future__ import annotations

from dataclasses import dataclass

from bigmem.profile.costs import (
    GIB,
    HUGE_PAGE,
    MIB,
    MOST_PAGES,
    SMALL_PAGE,
    PageCosts,
    affordable,
    page_costs,
)

_SIZE = 64 * MIB
_SECONDS = 0.4
# Clearing 2 MiB at once costs about a quarter of clearing it page by page.
_HUGE_SHARE = HUGE_PAGE / SMALL_PAGE / 4


@dataclass(frozen=True, slots=True)
class PagePrices:
    """Seconds for one page: its first touch, beyond the writing; advising it away; unmapping it."""

    fault_s: float
    dontneed_s: float
    unmap_s: float


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of both kinds of pages.

    Attributes
    ----------
    small, huge
        Of a page of 4 KiB, and of one of 2 MiB.
    huge_measured
        Whether this machine gave huge pages to be measured; if not, their prices are guessed.
    """

    small: PagePrices
    huge: PagePrices
    huge_measured: bool

    def faults(self, small: float, huge: float) -> float:
        """Seconds of so many faults."""
        return small * self.small.fault_s + huge * self.huge.fault_s


def measure() -> Prices:
    """Measure the prices, in about a second.

    Raises
    ------
    OSError, MemoryError
        There is no memory to measure with.
    """
    size = affordable(_SIZE)
    small = _prices(page_costs(size, huge=False, seconds=_SECONDS), SMALL_PAGE)
    costs = page_costs(size, huge=True, seconds=_SECONDS)
    if costs.huge_share < MOST_PAGES:
        guessed = (small.fault_s, small.dontneed_s, small.unmap_s)
        return Prices(small, PagePrices(*(price * _HUGE_SHARE for price in guessed)), False)
    return Prices(small, _prices(costs, HUGE_PAGE), True)


def _prices(costs: PageCosts, page: int) -> PagePrices:
    per_page = page / GIB / 1e3
    # Where the kernel refuses the advice nobody takes it.
    dontneed_ms = costs.munmap_ms if costs.dontneed_ms is None else costs.dontneed_ms
    return PagePrices(costs.fault_s, dontneed_ms * per_page, costs.munmap_ms * per_page)
