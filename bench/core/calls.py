"""What one release and one allocation cost the thread that makes them."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from bench.core.contenders import DEFERRED, NUMPY, RECYCLE, Contender
from bench.core.figure import Figure, Found, Results
from bench.core.scale import Scale
from bench.timing import make_array, percentile, timed, touch
from bigmem.sizes import format_size

ALLOCATIONS = 300
# From here on a repetition waits until the last one's memory is back, to bound what is held.
_LARGE = 256 << 20


@contextmanager
def hungry_thread() -> Iterator[None]:
    """Another Python thread that never stops wanting the GIL."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def summary(seconds: list[float]) -> Found:
    """p50 and p99; of fewer than 100 values the p99 is the maximum."""
    return {"count": len(seconds), "p50_s": median(seconds), "p99_s": percentile(seconds, 99)}


def measure_releases(contender: Contender, scale: Scale) -> Found:
    """Seconds of `del` of an array with every page touched, by size."""
    allocator = contender.make()
    found = {}
    for nbytes, count in scale.calls:
        seconds = []
        for _ in range(count):
            held = [touch(make_array(allocator, nbytes))]
            seconds.append(timed(held.clear))
            if allocator is not None and nbytes >= _LARGE:
                allocator.flush()
        found[str(nbytes)] = summary(seconds)
        if allocator is not None:
            allocator.flush()
            allocator.trim()
    return {"sizes": found}


def measure_hungry(contender: Contender, scale: Scale) -> Found:
    """`measure_releases` beside a thread that wants the GIL."""
    with hungry_thread():
        return measure_releases(contender, scale)


def measure_allocations(contender: Contender, scale: Scale) -> Found:
    """Seconds of an allocation right after an array of the same size was released."""
    allocator = contender.make()
    found = {}
    for nbytes, _ in scale.calls:
        touch(make_array(allocator, nbytes))
        seconds = []
        for _ in range(ALLOCATIONS):
            start = time.perf_counter()
            array = make_array(allocator, nbytes)
            seconds.append(time.perf_counter() - start)
            del array
        found[str(nbytes)] = summary(seconds)
        if allocator is not None:
            allocator.trim()
    return {"sizes": found}


def heads(results: Results) -> list[str]:
    """The sizes, with the number of repetitions where it is the same for all."""
    sizes = next(iter(results.values()))["sizes"]
    return [f"{format_size(int(size))} ({found['count']})" for size, found in sizes.items()]


def cells(found: Found, _: Results) -> list[str]:
    """p50 and p99 in microseconds."""
    return [
        f"{one['p50_s'] * 1e6:.3g} / {one['p99_s'] * 1e6:.3g}" for one in found["sizes"].values()
    ]


def largest(scale: Scale) -> int:
    """Bytes of the largest array."""
    return max(nbytes for nbytes, _ in scale.calls)


_FEW = "(number of repetitions; below 100 the p99 is the maximum)"

RELEASE = Figure(
    name="release",
    title="Releasing an array",
    reading="Time that `del` takes of its caller in us, p50 / p99, one byte of every page written "
    f"before, no other thread wanting the GIL {_FEW}. The largest size is 16 GiB or 60 % of what "
    "was available.",
    contenders=(NUMPY, DEFERRED, RECYCLE),
    measure=measure_releases,
    heads=heads,
    cells=cells,
    memory=largest,
)
HUNGRY = Figure(
    name="hungry",
    title="Releasing an array while another thread wants the GIL",
    reading=f"As above, beside a Python thread that spins {_FEW}.",
    contenders=(NUMPY, DEFERRED, RECYCLE),
    measure=measure_hungry,
    heads=heads,
    cells=cells,
    memory=largest,
)
ALLOCATE = Figure(
    name="allocate",
    title="Allocating an array where one was just released",
    reading="Time of the call in us, p50 / p99 (number of repetitions). recycle finds warm memory. "
    "NumPy only maps: its pages are paid for on first touch.",
    contenders=(NUMPY, RECYCLE),
    measure=measure_allocations,
    heads=heads,
    cells=cells,
    memory=largest,
)
