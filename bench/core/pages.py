"""Two questions of pages: how to clear dirty ones, and whether to populate fresh ones."""

import ctypes
import mmap
from statistics import median

import numpy as np

from bench.core.contenders import Contender
from bench.core.figure import Figure, Found, Results
from bench.core.scale import Scale
from bench.machine import huge_regime
from bench.timing import Array, milliseconds, timed
from bigmem.sizes import format_size

MADV_POPULATE_WRITE = 23
_HUGE_PAGE = 2 << 20

MEMSET = Contender("memset")
DONTNEED = Contender("MADV_DONTNEED")
FILL = Contender("fill")
POPULATE = Contender("MADV_POPULATE_WRITE, then fill")


class Range:
    """Anonymous memory on a huge page's border, in the pages of this process's regime."""

    def __init__(self, nbytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._mapping = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags)
        self._mapping.madvise(mmap.MADV_HUGEPAGE if huge_regime() else mmap.MADV_NOHUGEPAGE)
        whole = np.frombuffer(self._mapping, np.uint8)
        self._begin = -whole.ctypes.data % _HUGE_PAGE
        self.array: Array = whole[self._begin : self._begin + nbytes]

    def advise(self, advice: int) -> None:
        """Madvise all of it."""
        self._mapping.madvise(advice, self._begin, self.array.nbytes)

    def clear(self) -> None:
        """Memset all of it."""
        ctypes.memset(self.array.ctypes.data, 0, self.array.nbytes)


def measure_clearing(contender: Contender, scale: Scale) -> Found:
    """The call that makes dirty memory zero, and the first full write after it."""
    found = {}
    for nbytes in scale.cleared:
        memory = Range(nbytes)
        calls, fills = [], []
        for _ in range(3 * scale.repeats):
            memory.array.fill(1)
            if contender is MEMSET:
                calls.append(timed(memory.clear))
            else:
                calls.append(timed(memory.advise, mmap.MADV_DONTNEED))
            fills.append(timed(memory.array.fill, 2))
        both = [call + fill for call, fill in zip(calls, fills, strict=True)]
        found[str(nbytes)] = {"call_s": median(calls), "with_write_s": median(both)}
    return {"sizes": found}


def clearing_heads(results: Results) -> list[str]:
    """The sizes."""
    sizes = next(iter(results.values()))["sizes"]
    return [f"{format_size(int(size))} ms" for size in sizes]


def clearing_cells(found: Found, _: Results) -> list[str]:
    """The call alone, and with the first write."""
    return [
        f"{milliseconds(one['call_s'])} / {milliseconds(one['with_write_s'])}"
        for one in found["sizes"].values()
    ]


def clearing_finding(results: Results) -> str:
    """How the two compare, alone and once all of the memory is written."""
    memset, dontneed = results[MEMSET.name]["sizes"], results[DONTNEED.name]["sizes"]

    def ratios(what: str) -> str:
        return ", ".join(
            f"{one[what] / memset[size][what]:.2g} ({format_size(int(size))})"
            for size, one in dontneed.items()
        )

    return (
        f"The time of MADV_DONTNEED against memset: {ratios('call_s')}; with the first write of "
        f"everything: {ratios('with_write_s')}."
    )


def measure_prefault(contender: Contender, scale: Scale) -> Found:
    """Populating fresh memory and filling it."""
    populates, fills = [], []
    for _ in range(scale.repeats):
        memory = Range(scale.prefaulted)
        populate = 0.0
        if contender is POPULATE:
            populate = timed(memory.advise, MADV_POPULATE_WRITE)
        populates.append(populate)
        fills.append(timed(memory.array.fill, 1))
    both = [populate + fill for populate, fill in zip(populates, fills, strict=True)]
    return {"populate_s": median(populates), "fill_s": median(fills), "both_s": median(both)}


def prefault_cells(found: Found, results: Results) -> list[str]:
    """The parts, and the sum against filling alone."""
    return [
        milliseconds(found["populate_s"]),
        milliseconds(found["fill_s"]),
        milliseconds(found["both_s"]),
        f"{found['both_s'] / results[FILL.name]['both_s']:.2f}",
    ]


CLEARING = Figure(
    name="clearing",
    title="Clearing dirty memory",
    reading="Time of the call alone / of the call and the first write to every byte after it. "
    "1 MiB is half a huge page.",
    contenders=(MEMSET, DONTNEED),
    measure=measure_clearing,
    heads=clearing_heads,
    cells=clearing_cells,
    memory=lambda scale: max(scale.cleared),
    finding=clearing_finding,
)
PREFAULT = Figure(
    name="prefault",
    title="Populating 1 GiB before it is filled",
    reading="In ms.",
    contenders=(FILL, POPULATE),
    measure=measure_prefault,
    heads=lambda _: ["populate", "fill", "both", "against fill"],
    cells=prefault_cells,
    memory=lambda scale: scale.prefaulted,
)
