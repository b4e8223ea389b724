"""The whole examination: measuring within bounds of time and memory, then judging."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bigmem import osmem
from bigmem.profile import costs
from bigmem.profile.advice import Advice, advise
from bigmem.profile.costs import Measured
from bigmem.profile.gpu import GpuReport, measure_gpu
from bigmem.profile.machine import Machine, probe_machine

SCHEMA = 1
"""Version of the form of `Diagnosis.as_json`; grows when a name changes its meaning or goes."""

_SECONDS = 16.0
# What a page regime may take of it.
_REGIME_SECONDS = 4.0
# NumPy asks for huge pages from 4 MiB on; in less than this they are too small a part to tell.
_TELLING = 16 * costs.MIB


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was seen, measured and concluded; `seconds` is what it took."""

    machine: Machine
    measured: Measured
    gpu: GpuReport
    advice: Advice
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The same for `json.dumps`; every number is finite."""
        return {"schema": SCHEMA, **asdict(self)}


def diagnose(tell: Callable[[str], None]) -> Diagnosis:
    """Examine this machine in less than 20 s, with a tenth of the memory left and less than 4 GiB.

    Parameters
    ----------
    tell
        Called with what is being done, for whoever waits.
    """
    start = time.monotonic()
    measured = _measure_pages(tell)
    tell("the GPU, if there is one")
    left = start + _SECONDS - time.monotonic()
    gpu = measure_gpu(costs.affordable(costs.FULL_SIZE), max(left, 1.0))
    tell("the settings")
    # Last: to say how NumPy's allocations can be taken over it may have to prepare that.
    machine = probe_machine()
    advice = advise(machine, measured, gpu)
    return Diagnosis(machine, measured, gpu, advice, time.monotonic() - start)


def _measure_pages(tell: Callable[[str], None]) -> Measured:
    """Both regimes; of what no memory can be had for there are no figures."""
    nbytes = costs.affordable(costs.FULL_SIZE)
    small = huge = share = numpy_share = note = None
    try:
        tell("small pages")
        small = costs.page_costs(nbytes, huge=False, seconds=_REGIME_SECONDS)
        tell("huge pages")
        if osmem.huge_pages_work():
            huge = costs.page_costs(nbytes, huge=True, seconds=_REGIME_SECONDS)
            share = huge.huge_share
        else:
            share = 0.0
        if nbytes >= _TELLING:
            tell("NumPy's own pages")
            numpy_share = costs.numpy_huge_share(nbytes)
    except (OSError, MemoryError) as error:
        note = f"Not everything could be measured: {str(error) or 'no memory'}."
    if share is not None and share < costs.MOST_PAGES:
        huge = None
    return Measured(small, huge, share, numpy_share, costs.FULL_SIZE, note)
