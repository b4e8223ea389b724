"""What growing a block by half costs, against a copy into a larger one."""

import time
from statistics import median

import numpy as np

import bigmem
from bench.core.contenders import NUMPY, POLICIES, Contender
from bench.core.figure import Figure, Found, Results
from bench.core.scale import Scale
from bench.core.steps import page_faults
from bench.timing import Array, milliseconds
from bigmem import _core

SYSTEM = Contender("system", "system")
IN_THE_WAY = Contender("recycle, another block behind it", "recycle")
COPY = Contender("recycle, copied", "recycle")

_BEHIND = 2 << 20


def view(block: bigmem.Block) -> Array:
    """Its bytes."""
    return np.frombuffer(memoryview(block), np.uint8)


def grow_array(nbytes: int) -> tuple[float, float]:
    """Seconds of `ndarray.resize`, which also zeroes what is new, and with writing that again."""
    array = np.ones(nbytes, np.uint8)
    start = time.perf_counter()
    array.resize(nbytes * 3 // 2, refcheck=False)
    call = time.perf_counter() - start
    array[nbytes:] = 2
    return call, time.perf_counter() - start


def grow_block(
    contender: Contender, allocator: bigmem.Allocator, nbytes: int
) -> tuple[float, float]:
    """Seconds of the call, and with writing what is new."""
    larger = nbytes * 3 // 2
    block = allocator.allocate(nbytes)
    view(block).fill(1)
    behind = allocator.allocate(_BEHIND) if contender is IN_THE_WAY else None
    start = time.perf_counter()
    if contender is COPY:
        copy = allocator.allocate(larger)
        view(copy)[:nbytes] = view(block)
        block.release()
        block = copy
    elif not _core.resize_block(block, larger):
        raise RuntimeError(f"{contender.name} did not grow the block")
    call = time.perf_counter() - start
    view(block)[nbytes:] = 2
    both = time.perf_counter() - start
    if view(block)[nbytes - 1] != 1:
        raise RuntimeError(f"{contender.name} lost the contents")
    del behind
    return call, both


def measure_resize(contender: Contender, scale: Scale) -> Found:
    """Medians; nothing idle is there to be taken."""
    allocator = contender.make()
    calls, both, faults = [], [], []
    for _ in range(scale.repeats):
        before = page_faults()
        if allocator is None:
            one = grow_array(scale.resized)
        else:
            one = grow_block(contender, allocator, scale.resized)
        faults.append(page_faults() - before)
        calls.append(one[0])
        both.append(one[1])
        if allocator is not None:
            allocator.flush()
            allocator.trim()
    return {"call_s": median(calls), "both_s": median(both), "faults": median(faults)}


def resize_cells(found: Found, results: Results) -> list[str]:
    """Times, the second against that of a copy, and the faults of the whole life."""
    return [
        milliseconds(found["call_s"]),
        milliseconds(found["both_s"]),
        f"{found['both_s'] / results[COPY.name]['both_s']:.2f}",
        f"{found['faults']:,.0f}",
    ]


RESIZE = Figure(
    name="resize",
    title="Growing a block of 1 GiB by half",
    reading="Time of the call; and of the call and the first write of what is new, also against "
    "that of a copy into a block of the new size. Page faults, those of the first fill included. "
    "NumPy's is ndarray.resize, by the C library's realloc; it zeroes what is new itself.",
    contenders=(NUMPY, SYSTEM, *POLICIES, IN_THE_WAY, COPY),
    measure=measure_resize,
    heads=lambda _: ["call ms", "with write ms", "against a copy", "faults"],
    cells=resize_cells,
    memory=lambda scale: scale.resized * 5 // 2,
)
