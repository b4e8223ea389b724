"""Loops that write a fresh result each time, and what the program holds once it idles."""

import random
import resource
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

import bigmem
from bench.core.contenders import MALLOCS, OUT, POLICIES, Contender
from bench.core.figure import Figure, Found, Results
from bench.core.scale import Scale
from bench.machine import GIB, MIB
from bench.timing import Array, make_array, milliseconds, timed
from bigmem import osmem

WARM_UP = 3
ARRAYS_PER_STEP = 4
STEPS_ALIVE = 4
# Back is what differs by less than this from all of it.
_BACK = 0.95
_POLL_SECONDS = 0.05


def page_faults() -> int:
    """Minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def adder(contender: Contender, a: Array, b: Array) -> Callable[[], Array]:
    """`a + b`, written where the contender has it written."""
    allocator = contender.make()
    if contender is OUT:
        kept = np.empty_like(a)
        return lambda: np.add(a, b, out=kept)
    if allocator is None:
        return lambda: np.add(a, b)
    return lambda: np.add(a, b, out=bigmem.empty(a.shape, a.dtype, allocator=allocator))


def loop(step: Callable[[], Array], again: Callable[[Array], object], steps: int) -> Found:
    """Median time and faults of `c = step()`: the last result lives until the next is there.

    After every step `again` writes the same into the same array: the best case, measured in the
    same moments.
    """
    c = step()
    seconds, best, faults = [], [], []
    for _ in range(steps):
        before, start = page_faults(), time.perf_counter()
        c = step()
        seconds.append(time.perf_counter() - start)
        faults.append(page_faults() - before)
        best.append(timed(again, c))
    assert c[-1] == 3
    return {"step_s": median(seconds), "out_s": median(best), "faults": median(faults)}


def idle(seconds: float, live: int) -> Found:
    """Wait until the memory of a loop is back, at most `seconds`; say how much came back.

    Parameters
    ----------
    seconds
        How long to wait.
    live
        RSS of this process before the loop.
    """
    peak = osmem.peak_resident_bytes()
    start, back_after = time.perf_counter(), None
    while True:
        waited = time.perf_counter() - start
        returned = (peak - osmem.resident_bytes()) / (peak - live)
        if back_after is None and returned >= _BACK:
            back_after = waited
        if waited >= seconds or returned >= 0.999:
            break
        time.sleep(_POLL_SECONDS)
    return {
        "returned": returned,
        "back_after_s": back_after,
    }


def measure_steps(contender: Contender, scale: Scale) -> Found:
    """The step loop, then the idle program."""
    count = scale.result // 8
    a, b = np.full(count, 1.0), np.full(count, 2.0)
    live = osmem.resident_bytes()
    step = adder(contender, a, b)
    again = partial(np.add, a, b)
    loop(step, again, WARM_UP)
    found = loop(step, again, scale.steps)
    if contender is not OUT:
        found |= idle(scale.idle, live)
    return {**found, "peak_bytes": osmem.peak_resident_bytes(), "result_bytes": scale.result}


def step_cells(found: Found, _: Results) -> list[str]:
    """Times against writing into the same array; what came back against what the loop added."""
    idled = "returned" in found
    after = found.get("back_after_s")
    return [
        milliseconds(found["step_s"]),
        f"{found['step_s'] / found['out_s']:.2f}",
        f"{found['faults']:,.0f}",
        f"{found['peak_bytes'] / GIB:.2f}",
        f"{100 * found['returned']:.1f} %" if idled else "",
        (f"{after:.1f}" if after is not None else "not") if idled else "",
    ]


def array_sizes(scale: Scale) -> list[list[int]]:
    """Sizes of each step's arrays, evenly spread over the orders of magnitude; always the same."""
    rng = random.Random(1)
    orders = scale.mixed_largest // MIB
    return [
        [int(MIB * orders ** rng.random()) for _ in range(ARRAYS_PER_STEP)]
        for _ in range(scale.mixed_steps)
    ]


def measure_mixed(contender: Contender, scale: Scale) -> Found:
    """Steps that make a few arrays of mixed sizes each; the arrays of the last steps are alive."""
    allocator = contender.make()
    sizes = array_sizes(scale)
    before = osmem.resident_bytes()
    alive: deque[list[Array]] = deque(maxlen=STEPS_ALIVE)
    peak_live = 0

    def run() -> None:
        nonlocal peak_live
        for step in sizes:
            arrays = [make_array(allocator, nbytes) for nbytes in step]
            for array in arrays:
                array.fill(1)
            peak_live = max(peak_live, sum(a.nbytes for held in (*alive, arrays) for a in held))
            alive.append(arrays)

    seconds = timed(run)
    written = sum(map(sum, sizes))
    return {
        "bytes_per_s": written / seconds,
        "peak_bytes": osmem.peak_resident_bytes() - before,
        "peak_live_bytes": peak_live,
    }


def mixed_cells(found: Found, results: Results) -> list[str]:
    """Throughput against plain NumPy, the peak against what was alive at most."""
    plain = results[MALLOCS[0].name]
    return [
        f"{found['bytes_per_s'] / GIB:.2f}",
        f"{found['bytes_per_s'] / plain['bytes_per_s']:.2f}",
        f"{found['peak_bytes'] / MIB:.0f}",
        f"{found['peak_bytes'] / found['peak_live_bytes']:.2f}",
    ]


STEPS = Figure(
    name="steps",
    title="c = a + b, over and over, then nothing",
    reading="a, b and each c of 512 MiB, unless memory is short. Median time of an iteration, the "
    "drop of the last c included; against out=, which is writing the same into the same c again, "
    "right after it in the same process; page faults. The row out= keeps one array. Then the "
    "program idles for the default decay time and 2 s: how much of the RSS that the loop had added "
    "came back, and after how many seconds 95 % of it had. tests/bigmem/test_quiet.py sees "
    "that the machine has it again; here MemAvailable of a virtual machine lags too much to say.",
    contenders=(OUT, *MALLOCS, *POLICIES),
    measure=measure_steps,
    heads=lambda _: ["ms", "against out=", "faults", "peak GiB", "came back", "95 % after s"],
    cells=step_cells,
    memory=lambda scale: 4 * scale.result,
)  # fmt: skip
MIXED = Figure(
    name="mixed",
    title="Arrays of 1 to 64 MiB",
    reading=f"Each step makes and fills {ARRAYS_PER_STEP} arrays of random sizes (the same for "
    f"all); those of the last {STEPS_ALIVE} steps are alive. What was written a second, and the "
    "highest RSS that was added, against the highest sum of the sizes alive.",
    contenders=(*MALLOCS, *POLICIES),
    measure=measure_mixed,
    heads=lambda _: ["GiB/s", "against numpy", "peak MiB", "against live"],
    cells=mixed_cells,
    memory=lambda scale: (STEPS_ALIVE + 1) * ARRAYS_PER_STEP * scale.mixed_largest,
)
