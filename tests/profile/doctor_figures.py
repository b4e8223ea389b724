"""Made-up machines and figures for the tests of the doctor: ordinary ones, and any."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from bigmem.profile.costs import Measured, PageCosts
from bigmem.profile.gpu import GpuCosts, GpuReport, PinnedArena
from bigmem.profile.machine import HugePages, Limits, Machine, MemoryGroup, Overcommit

MIB, GIB = 1 << 20, 1 << 30

SMALL = PageCosts(
    nbytes=256 * MIB,
    rounds=5,
    huge_share=0.0,
    fault_s=2e-6,
    warm_up_ms=610.0,
    first_touch_ms=520.0,
    warm_fill_ms=50.0,
    dontneed_ms=65.0,
    free_ms=50.0,
    refill_ms=90.0,
    numpy_free_ms=70.0,
    munmap_ms=72.0,
)
HUGE = PageCosts(
    nbytes=256 * MIB,
    rounds=5,
    huge_share=1.0,
    fault_s=180e-6,
    warm_up_ms=150.0,
    first_touch_ms=92.0,
    warm_fill_ms=40.0,
    dontneed_ms=2.5,
    free_ms=0.5,
    refill_ms=41.0,
    numpy_free_ms=3.0,
    munmap_ms=2.6,
)
MEASURED = Measured(SMALL, HUGE, 1.0, 0.99, 256 * MIB)
NO_HUGE = replace(MEASURED, huge=None, huge_share=0.0, numpy_huge_share=0.0)

MACHINE = Machine(
    kernel="6.1.0",
    architecture="x86_64",
    virtual=False,
    cores=8,
    machine_cores=16,
    load=0.5,
    memory_bytes=64 * GIB,
    available_bytes=60 * GIB,
    swap_bytes=0,
    swap_free_bytes=0,
    limit_bytes=64 * GIB,
    left_bytes=60 * GIB,
    huge_pages=HugePages("madvise", "madvise", True, True),
    overcommit=Overcommit(0, 50, 32 * GIB, GIB),
    limits=Limits(None, None, 8 * MIB),
    groups=(),
    stalls=True,
    numa_nodes=(0,),
    max_mappings=65530,
    python="CPython 3.11.7",
    numpy="2.4.6",
    numpy_huge_variable=None,
    numpy_hook="default handler",
)

NO_GPU = GpuReport(None, "not measured: there is no GPU", 0)
GPU_COSTS = GpuCosts("Some GPU", 256 * MIB, 390.0, 100.0, 40.0, 18.0, 20.0, 130.0, 19.5, 70.0)
ARENA = PinnedArena("vmm", None, 290.0, 50.0)
GPU = GpuReport(GPU_COSTS, None, 1, ARENA)


def with_huge_pages(**settings: Any) -> Machine:
    return replace(MACHINE, huge_pages=replace(MACHINE.huge_pages, **settings))


# Any machine, any figures.
milliseconds = st.floats(0, 1e5)
sizes = st.integers(0, 1 << 45)
shares = st.floats(0, 1)
maybe_sizes = st.none() | sizes
page_costs = st.builds(
    PageCosts,
    nbytes=st.integers(1, 128).map(lambda pages: pages * 2 * MIB),
    rounds=st.integers(1, 5),
    huge_share=shares,
    fault_s=st.floats(0, 1),
    warm_up_ms=milliseconds,
    first_touch_ms=milliseconds,
    warm_fill_ms=milliseconds,
    dontneed_ms=st.none() | milliseconds,
    free_ms=st.none() | milliseconds,
    refill_ms=st.none() | milliseconds,
    numpy_free_ms=st.none() | milliseconds,
    munmap_ms=milliseconds,
)
measurements = st.builds(
    Measured,
    small=st.none() | page_costs,
    huge=st.none() | page_costs,
    huge_share=st.none() | shares,
    numpy_huge_share=st.none() | shares,
    wanted_bytes=st.just(256 * MIB),
    note=st.none() | st.just("Not everything could be measured: no memory."),
)
groups = st.builds(MemoryGroup, st.sampled_from([1, 2]), st.just("/cg"), sizes, sizes)
machines = st.builds(
    Machine,
    kernel=st.just("6.1"),
    architecture=st.just("x86_64"),
    virtual=st.booleans(),
    cores=st.integers(1, 512),
    machine_cores=st.integers(1, 512),
    load=st.none() | st.floats(0, 1e4),
    memory_bytes=maybe_sizes,
    available_bytes=maybe_sizes,
    swap_bytes=maybe_sizes,
    swap_free_bytes=maybe_sizes,
    limit_bytes=maybe_sizes,
    left_bytes=maybe_sizes,
    huge_pages=st.builds(
        HugePages,
        enabled=st.sampled_from([None, "always", "madvise", "never"]),
        defrag=st.sampled_from([None, "always", "defer", "defer+madvise", "madvise", "never"]),
        khugepaged=st.none() | st.booleans(),
        allowed=st.none() | st.booleans(),
    ),
    overcommit=st.builds(
        Overcommit, st.sampled_from([None, 0, 1, 2]), st.none(), maybe_sizes, maybe_sizes
    ),
    limits=st.builds(Limits, maybe_sizes, maybe_sizes, maybe_sizes),
    groups=st.lists(groups, max_size=3).map(tuple),
    stalls=st.none() | st.booleans(),
    numa_nodes=st.sampled_from([(), (0,), (0, 1)]),
    max_mappings=st.none() | st.integers(0, 1 << 31),
    python=st.just("CPython 3.11"),
    numpy=st.just("2.4"),
    numpy_huge_variable=st.sampled_from([None, "0", "1", ""]),
    numpy_hook=st.sampled_from(["default handler", "new threads"]),
)
gpu_costs = st.builds(GpuCosts, st.just("GPU"), sizes, *[milliseconds for _ in range(8)])
arenas = st.builds(
    PinnedArena,
    st.sampled_from(("vmm", "register", "alloc")),
    st.none() | st.just("refused"),
    milliseconds,
    milliseconds,
) | st.just(PinnedArena(None, "no cuda-bindings"))
gpus = st.just(NO_GPU) | st.builds(
    GpuReport, gpu_costs, st.none(), st.integers(1, 8), st.none() | arenas
)
