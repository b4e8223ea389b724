"""Release policies: what becomes of a range once its block has died.

Policies are plain data, carried out by the core. A new kind of behaviour is a new `Allocator`.
"""

import math
from dataclasses import dataclass
from typing import Literal, SupportsIndex

from .errors import BigmemError
from .sizes import parse_size

Advice = Literal["dontneed", "free"]


def _check_advice(advice: str) -> None:
    if advice not in ("dontneed", "free"):
        raise BigmemError(f"advice is 'dontneed' or 'free', not {advice!r}")


@dataclass(frozen=True, slots=True)
class Inline:
    """Give memory back at once, on the releasing thread, with the GIL released.

    Parameters
    ----------
    advice
        ``"dontneed"`` frees pages now. ``"free"`` (``MADV_FREE``) lets the kernel take them when it
        needs them: cheaper, but they count as resident until then.
    """

    advice: Advice = "dontneed"

    def __post_init__(self) -> None:
        _check_advice(self.advice)


@dataclass(frozen=True, slots=True)
class Deferred:
    """Hand memory over to the reclaim pool, which gives it back in the background.

    Parameters
    ----------
    advice
        As for `Inline`.
    max_pending
        Bytes, or a string such as ``"4GiB"``, that may wait for the pool. Releases never wait; an
        allocation that finds more helps to give it back first. `None` takes a quarter of the
        memory that the process may use.
    """

    advice: Advice = "dontneed"
    max_pending: SupportsIndex | str | None = None

    def __post_init__(self) -> None:
        _check_advice(self.advice)
        if self.max_pending is not None:
            object.__setattr__(self, "max_pending", parse_size(self.max_pending))


@dataclass(frozen=True, slots=True)
class Recycle:
    """Keep memory warm for reuse without a fault, and give back what stays idle.

    Nothing goes back before it has been idle for half of `decay`; then it goes oldest first and
    evenly, so that all is back once it has been idle for `decay`.

    Parameters
    ----------
    decay
        Seconds; 0 gives everything back in the background at once, infinity keeps it until `trim`.
    max_warm
        Bytes, or a string such as ``"4GiB"``: what is warm beyond that goes back in the background
        without waiting. `None` sets no limit.
    advice
        As for `Inline`.
    """

    decay: float = 10.0
    max_warm: SupportsIndex | str | None = None
    advice: Advice = "dontneed"

    def __post_init__(self) -> None:
        _check_advice(self.advice)
        if math.isnan(self.decay) or self.decay < 0:
            raise BigmemError(f"decay is a number of seconds, not {self.decay}")
        if self.max_warm is not None:
            object.__setattr__(self, "max_warm", parse_size(self.max_warm))


ReleasePolicy = Inline | Deferred | Recycle
