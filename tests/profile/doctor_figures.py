"""Made-up machines and figures for the tests of the doctor."""

from dataclasses import replace
from typing import Any

from bigmem.profile.advice import Measured
from bigmem.profile.costs import PageCosts
from bigmem.profile.gpu import GpuCosts, GpuReport
from bigmem.profile.machine import HugePages, Limits, Machine, Overcommit

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
    numpy_hook=None,
)

NO_GPU = GpuReport(None, "not measured: there is no GPU", 0)
GPU_COSTS = GpuCosts("Some GPU", 256 * MIB, 390.0, 100.0, 40.0, 18.0, 20.0, 130.0, 19.5, 70.0)
GPU = GpuReport(GPU_COSTS, None, 1)


def with_huge_pages(**settings: Any) -> Machine:
    return replace(MACHINE, huge_pages=replace(MACHINE.huge_pages, **settings))
