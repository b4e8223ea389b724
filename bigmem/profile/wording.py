"""How the doctor writes numbers."""

from __future__ import annotations

from bigmem.sizes import format_size


def figure(value: float) -> str:
    """As many digits as the figure is worth, without an exponent."""
    decimals = 0 if value >= 10 or not value else 1 if value >= 1 else 2
    return f"{value:.{decimals}f}"


def ms(milliseconds: float) -> str:
    """A time, from milliseconds."""
    return f"{figure(milliseconds)} ms"


def size(nbytes: int | None) -> str:
    """A size, which the machine may not have told."""
    return "an unknown size" if nbytes is None else format_size(nbytes)
