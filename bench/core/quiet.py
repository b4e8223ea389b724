"""What the rest of a program notices while memory goes back to the system."""

import mmap
import threading
import time
from collections.abc import Callable
from statistics import median

import bigmem
from bench.core.contenders import Contender
from bench.core.figure import Figure, Found, Results, share
from bench.core.pages import Range
from bench.core.scale import Scale
from bench.machine import GIB, MIB
from bench.timing import make_array, milliseconds, touch

UnderWay = Callable[[], bool]

# What one step of the foreground thread faults in: small against what a reclaim takes.
_PIECE = 2 * MIB
_ALONE_SECONDS = 0.2

ALONE = Contender("nothing goes back")
MUNMAP = Contender("munmap in a thread", "mapped")
DEFERRED = Contender("deferred")
TRIM = Contender("recycle, trimmed in a thread", "recycle")
WORKERS = {count: Contender(f"{count} worker{'s' * (count > 1)}") for count in (1, 2, 4)}


def allocator_of(contender: Contender) -> bigmem.Allocator | None:
    """Its allocator, with as many workers as its name says."""
    for count, one in WORKERS.items():
        if contender is one:
            pool = bigmem.ReclaimPool(workers=count)
            return bigmem.ArenaAllocator(release=bigmem.Deferred(), reclaim=pool)
    return bigmem.make("deferred") if contender is DEFERRED else contender.make()


def give_back(contender: Contender, nbytes: int) -> UnderWay:
    """Let `nbytes` of touched memory go back; the result tells whether that is under way."""
    if contender is ALONE:
        end = time.perf_counter() + _ALONE_SECONDS
        return lambda: time.perf_counter() < end
    allocator = allocator_of(contender)
    assert allocator is not None
    held = [touch(make_array(allocator, nbytes))]
    if contender is MUNMAP:
        thread = threading.Thread(target=held.clear)
    elif contender is TRIM:
        held.clear()
        thread = threading.Thread(target=allocator.trim)
    else:
        held.clear()
        return lambda: bool(allocator.stats().resident)
    thread.start()
    return thread.is_alive


def longest_wait(under_way: UnderWay) -> float:
    """Of a loop that maps, touches and unmaps 1 MiB, in seconds."""
    longest = 0.0
    ones = bytes([1]) * (MIB // 4096)
    while not longest or under_way():
        start = time.perf_counter()
        mapping = mmap.mmap(-1, MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping[::4096] = ones
        mapping.close()
        longest = max(longest, time.perf_counter() - start)
    return longest


def fault_speed(under_way: UnderWay, most: int) -> float:
    """Bytes a second that this thread writes to memory nobody touched before, at most `most`."""
    fresh = Range(most).array
    written, start = 0, time.perf_counter()
    while written + _PIECE <= most and (written == 0 or under_way()):
        fresh[written : written + _PIECE].fill(1)
        written += _PIECE
    return written / (time.perf_counter() - start)


def measure_waits(contender: Contender, scale: Scale) -> float:
    """The longest wait of all repetitions."""
    return max(longest_wait(give_back(contender, scale.reclaimed)) for _ in range(scale.repeats))


def measure_speeds(contender: Contender, scale: Scale) -> tuple[float, float]:
    """Median speeds of faulting: with nothing going on, and while memory goes back."""
    most = scale.reclaimed // 2
    alone, beside = [], []
    for _ in range(scale.repeats):
        alone.append(fault_speed(give_back(ALONE, 0), most))
        beside.append(fault_speed(give_back(contender, scale.reclaimed), most))
    return median(alone), median(beside)


def measure_quiet(contender: Contender, scale: Scale) -> Found:
    """Both, while `scale.reclaimed` bytes go back."""
    alone, beside = measure_speeds(contender, scale)
    return {
        "longest_wait_s": measure_waits(contender, scale),
        "alone_bytes_per_s": alone,
        "beside_bytes_per_s": beside,
        "reclaimed_bytes": scale.reclaimed,
    }


def quiet_cells(found: Found, results: Results) -> list[str]:
    """The wait against that of one munmap; the speed against that with nothing going on."""
    wait = found["longest_wait_s"]
    return [
        milliseconds(wait),
        f"{wait / results[MUNMAP.name]['longest_wait_s']:.2f}",
        f"{found['beside_bytes_per_s'] / MIB:.0f}",
        share(found["beside_bytes_per_s"], found["alone_bytes_per_s"]),
    ]


def measure_workers(contender: Contender, scale: Scale) -> Found:
    """How fast memory goes back with this many workers, and what a foreground thread keeps."""
    rates = []
    for _ in range(scale.repeats):
        under_way = give_back(contender, scale.reclaimed)
        start = time.perf_counter()
        while under_way():
            time.sleep(0.0005)
        rates.append(scale.reclaimed / (time.perf_counter() - start))
    alone, beside = measure_speeds(contender, scale)
    return {
        "reclaimed_bytes_per_s": median(rates),
        "alone_bytes_per_s": alone,
        "beside_bytes_per_s": beside,
    }


def worker_cells(found: Found, results: Results) -> list[str]:
    """The rate against that of one worker."""
    rate = found["reclaimed_bytes_per_s"]
    return [
        f"{rate / GIB:.1f}",
        f"{rate / results[WORKERS[1].name]['reclaimed_bytes_per_s']:.2f}",
        share(found["beside_bytes_per_s"], found["alone_bytes_per_s"]),
    ]


def memory(scale: Scale) -> int:
    """What goes back, and half as much that is faulted in meanwhile."""
    return scale.reclaimed * 3 // 2


QUIET = Figure(
    name="quiet",
    title="While 4 GiB go back",
    reading="Less where memory is short. The longest wait of a foreground loop that maps, touches "
    "and unmaps 1 MiB, over all repetitions, and against one whole munmap; then how fast a "
    "foreground thread faults fresh memory in, and the share of its speed that it keeps. 4 GiB of "
    "huge pages go back within a few faults: their shares are coarse.",
    contenders=(ALONE, MUNMAP, DEFERRED, TRIM),
    measure=measure_quiet,
    heads=lambda _: ["longest wait ms", "against munmap", "faulting MiB/s", "speed kept"],
    cells=quiet_cells,
    memory=memory,
)
RECLAIM = Figure(
    name="workers",
    title="More reclaim workers",
    reading="How fast 4 GiB go back with nobody else at work, and the share of its speed that a "
    "thread keeps which faults fresh memory meanwhile.",
    contenders=tuple(WORKERS.values()),
    measure=measure_workers,
    heads=lambda _: ["GiB/s", "against one", "speed kept"],
    cells=worker_cells,
    memory=memory,
)
