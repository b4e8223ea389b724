"""What is worth telling of what was seen, in one sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from bigmem.profile.costs import MOST_PAGES, OUTLIER, Measured, PageCosts
from bigmem.profile.gpu import GpuReport, PinnedArena
from bigmem.profile.machine import Machine
from bigmem.profile.policies import is_short
from bigmem.profile.wording import figure, ms, size
from bigmem.sizes import format_size

# Copies that save less than this part of their time are no faster.
_FASTER = 0.05
# A copy of a GiB takes longer than this; less is a clock's error.
_FASTEST = 1e-3

# What each mechanism of the NumPy hook amounts to.
_HOOKS = {
    "default handler": "bigmem.install() takes over NumPy's large arrays in every thread.",
    "new threads": "bigmem.install() takes over NumPy's large arrays in the context that calls it "
    "and in threads started later: this NumPy does not let its other threads be reached.",
}

# What bigmem's pinned memory amounts to, by its mechanism.
_PINNED = {
    "vmm": "CUDA's virtual memory (vmm): nothing that it does makes a kernel launch wait",
    "register": "registered blocks (register): giving them back may make kernel launches wait",
    "alloc": "blocks of cudaHostAlloc (alloc): taking and giving them may make launches wait",
}


def find(machine: Machine, measured: Measured, gpu: GpuReport) -> Iterator[str]:
    """Say it, the most important first."""
    if measured.note is not None:
        yield measured.note
    yield from _findings_on_pages(machine, measured)
    slow = [each for each in (measured.small, measured.huge) if each and _was_untouched(each)]
    if slow:
        worst = max(slow, key=lambda each: each.warm_up_ms)
        yield (
            f"The very first fill took {ms(worst.warm_up_ms)} per GiB, later ones of fresh memory "
            f"{ms(worst.first_touch_ms + worst.warm_fill_ms)}: memory that nobody had touched "
            "since the machine started costs that much once."
        )
    touched = [each.nbytes for each in (measured.small, measured.huge) if each is not None]
    if touched and min(touched) < measured.wanted_bytes:
        yield (
            f"Measured with {format_size(min(touched))} at a time instead of "
            f"{format_size(measured.wanted_bytes)}, for want of memory or time: less exact."
        )
    if is_short(machine.limit_bytes, machine.left_bytes):
        yield f"Memory is short: {size(machine.left_bytes)} left of {size(machine.limit_bytes)}."
    if machine.load is not None and machine.load > machine.machine_cores:
        yield (
            f"The machine is busy (load {machine.load:.1f}, {machine.machine_cores} cores): the "
            "figures are processor time, but may be high all the same."
        )
    if machine.cores == 1:
        yield "This process has one core: what a background thread does, it does in your time."
    if len(machine.numa_nodes) > 1:
        yield (
            f"There are {len(machine.numa_nodes)} NUMA nodes; AnonymousPages(numa=...) chooses "
            "where an arena's memory comes from."
        )
    yield _HOOKS[machine.numpy_hook]
    yield from _findings_on_gpu(gpu)


def _was_untouched(costs: PageCosts) -> bool:
    return costs.warm_up_ms > OUTLIER * (costs.first_touch_ms + costs.warm_fill_ms)


def _findings_on_pages(machine: Machine, measured: Measured) -> Iterator[str]:
    if measured.huge_share is None:
        return
    if measured.huge is None:
        yield f"Huge pages are not to be had: {_refusal(machine, measured.huge_share)}."
    else:
        yield f"Huge pages are had: {measured.huge_share:.0%} of what asked for them."
        if measured.small is not None:
            yield (
                f"First touch costs {ms(measured.small.first_touch_ms)} per GiB in small pages, "
                f"{ms(measured.huge.first_touch_ms)} in huge ones."
            )
    if measured.numpy_huge_share is not None:
        if measured.numpy_huge_share >= MOST_PAGES:
            yield f"NumPy's large arrays have huge pages ({measured.numpy_huge_share:.0%})."
        else:
            yield "NumPy's large arrays have small pages."


def _refusal(machine: Machine, share: float) -> str:
    huge = machine.huge_pages
    if huge.enabled is None:
        return "this kernel has no setting for them"
    if huge.enabled == "never":
        return "the system's setting is never"
    if huge.allowed is False:
        return "they are taken from this process (PR_SET_THP_DISABLE)"
    return f"{share:.0%} of what asked for them got any"


def _findings_on_gpu(gpu: GpuReport) -> Iterator[str]:
    costs = gpu.costs
    if costs is None:
        if gpu.note is not None:
            yield f"GPU: {gpu.note}."
        return
    yield (
        f"{costs.device}: copies to it run at {_speed(costs.pinned_to_device_ms)} from pinned "
        f"memory, {_speed(costs.pageable_to_device_ms)} from other; back at "
        f"{_speed(costs.pinned_to_host_ms)} and {_speed(costs.pageable_to_host_ms)}."
    )
    saved = costs.pageable_to_device_ms - costs.pinned_to_device_ms
    pinning = costs.host_alloc_ms + costs.host_free_ms
    if saved > max(_FASTER * costs.pageable_to_device_ms, _FASTEST):
        yield (
            f"Pinning costs {ms(pinning)} per GiB to allocate and free: it pays from "
            f"{_times(pinning / saved)} of the same buffer on."
        )
    else:
        yield f"Pinning costs {ms(pinning)} per GiB, and makes copies no faster here."
    if gpu.arena is not None:
        yield _finding_on_arena(gpu.arena)


def _finding_on_arena(arena: PinnedArena) -> str:
    if arena.mechanism is None:
        return f"bigmem.cuda.PinnedAllocator is not to be had: {arena.why}."
    costs = (
        f"{ms(arena.allocate_ms or 0)} per GiB to allocate fresh, "
        f"{ms(arena.give_back_ms or 0)} to give back"
    )
    reason = "" if arena.why is None else f" Better is refused: {arena.why}."
    return (
        f"bigmem.cuda.PinnedAllocator goes by {_PINNED[arena.mechanism]}; {costs}, nothing to "
        f"reuse warm.{reason}"
    )


def _speed(milliseconds: float) -> str:
    return f"{figure(1e3 / max(milliseconds, _FASTEST))} GiB/s"


def _times(copies: float) -> str:
    whole = int(copies) + 1
    return "1 copy" if whole == 1 else f"{whole} copies"
