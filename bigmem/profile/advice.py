"""From figures to advice: which release policy fits, and what a system administrator could change.

Pure: nothing here looks at the machine, and nothing is advised about what was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bigmem.profile.costs import GIB, PageCosts
from bigmem.profile.gpu import GpuReport
from bigmem.profile.machine import NUMPY_HUGE_VARIABLE, Machine, MemoryGroup
from bigmem.sizes import format_size

POLICIES = ("system", "mapped", "dontneed", "deferred", "recycle")
"""The names that `bigmem.make` knows; `system` is what NumPy does by itself."""

MOST_PAGES = 0.5
"""From this share on, memory counts as being in huge pages."""

_THP = "/sys/kernel/mm/transparent_hugepage"
# A gain below this share of an array's whole time is nothing to change a program for.
_WORTH = 0.1
# Memory is short when less than one part in so many of it is left.
_SHORT_PART = 8
# Control groups below this hold no huge arrays, however empty they are.
_SMALL_GROUP = 2 * GIB
# Enough locked memory for the buffers of a few large copies.
_MODEST_LOCKED = GIB
# What the kernel allows a process by default.
_USUAL_MAPPINGS = 65530
# Copies that save less than this part of their time are no faster.
_FASTER = 0.05
# A copy of a GiB takes longer than this; less is a clock's error.
_FASTEST = 1e-3
# First fills this many times slower than later ones come from memory never used before.
_UNTOUCHED = 1.5


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of the costs of pages.

    Attributes
    ----------
    small, huge
        The two page regimes; `None` where there was no memory to measure with, and for `huge` also
        where fewer than half of the pages came huge.
    huge_share
        The part of memory that came in huge pages where they were asked for; `None` if unmeasured.
    numpy_huge_share
        The same of NumPy's own arrays, which ask by themselves.
    wanted_bytes
        What each round would have touched, had there been room and time.
    note
        Why something could not be measured, if so.
    """

    small: PageCosts | None
    huge: PageCosts | None
    huge_share: float | None
    numpy_huge_share: float | None
    wanted_bytes: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Tax:
    """What a policy leaves to pay, beyond writing an array, on the program's own thread.

    In ms per GiB; `None` where the regime was not measured.
    """

    policy: str
    small_ms: float | None
    huge_ms: float | None
    means: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which policy fits in one page regime, what it wins over NumPy's own memory, and why.

    `gain_ms` is per GiB; `gain_share` is its part of making, filling and dropping an array.
    """

    pages: str
    policy: str
    gain_ms: float
    gain_share: float
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """Something to change: what, why, and the file or command."""

    what: str
    why: str
    how: str


@dataclass(frozen=True, slots=True)
class Advice:
    """All of it.

    Attributes
    ----------
    policy
        The policy that fits in the pages that NumPy's arrays have here; `None` if unmeasured.
    pages
        Which those are, ``"small"`` or ``"huge"``; `None` if unmeasured.
    verdicts
        One for each page regime that was measured.
    taxes
        Every policy in both regimes.
    findings
        Sentences on what was seen.
    changes
        What could be changed, and by which command.
    """

    policy: str | None
    pages: str | None
    verdicts: tuple[Verdict, ...]
    taxes: tuple[Tax, ...]
    findings: tuple[str, ...]
    changes: tuple[Change, ...]


def advise(machine: Machine, measured: Measured, gpu: GpuReport) -> Advice:
    """Judge the figures."""
    verdicts = tuple(
        _verdict(pages, costs, machine)
        for pages, costs in (("small", measured.small), ("huge", measured.huge))
        if costs is not None
    )
    pages = _pages_of_numpy(machine, measured)
    own = next((each for each in verdicts if each.pages == pages), next(iter(verdicts), None))
    return Advice(
        policy=None if own is None else own.policy,
        pages=None if own is None else own.pages,
        verdicts=verdicts,
        taxes=tuple(
            Tax(policy, _tax(policy, measured.small), _tax(policy, measured.huge), means)
            for policy, means in _MEANS.items()
        ),
        findings=tuple(_findings(machine, measured, gpu)),
        changes=tuple(_changes(machine, measured, gpu)),
    )


def is_short(limit: int | None, left: int | None) -> bool:
    """Whether so little of the memory is left that idle memory should not be kept."""
    return limit is not None and left is not None and left < limit // _SHORT_PART


def _pages_of_numpy(machine: Machine, measured: Measured) -> str:
    share = measured.numpy_huge_share
    if share is None:  # unmeasured, but it asks for huge pages unless told otherwise
        asks = machine.numpy_huge_variable != "0"
        return "huge" if asks and measured.huge is not None else "small"
    return "huge" if share >= MOST_PAGES else "small"


_MEANS = {
    "system": "NumPy's own: first touch, then freed on the spot with the GIL held",
    "mapped": "first touch, then unmapped on the spot without the GIL",
    "dontneed": "first touch, then advised away on the spot without the GIL",
    "deferred": "first touch; given back in the background",
    "recycle": "nothing once the pages are warm; idle ones go back in the background",
}

# What each mechanism of the NumPy hook amounts to.
_HOOKS = {
    "default handler": "bigmem.install() takes over NumPy's large arrays in every thread.",
    "new threads": "bigmem.install() takes over NumPy's large arrays in the context that calls it "
    "and in threads started later: this NumPy does not let its other threads be reached.",
}


def _freeing(costs: PageCosts) -> float:
    return costs.munmap_ms if costs.numpy_free_ms is None else costs.numpy_free_ms


def _tax(policy: str, costs: PageCosts | None) -> float | None:
    if costs is None:
        return None
    giving_back = {
        "system": _freeing(costs),
        "mapped": costs.munmap_ms,
        "dontneed": costs.dontneed_ms,
        "deferred": 0.0,
    }
    if policy == "recycle":
        return 0.0
    part = giving_back[policy]
    return None if part is None else costs.first_touch_ms + part


def _verdict(pages: str, costs: PageCosts, machine: Machine) -> Verdict:
    now = costs.first_touch_ms + _freeing(costs)
    whole = now + costs.warm_fill_ms

    def gain(policy: str) -> tuple[float, float]:
        tax = _tax(policy, costs)
        won = 0.0 if tax is None else max(now - tax, 0.0)
        return won, won / whole if whole else 0.0

    recycle, deferred = gain("recycle"), gain("deferred")
    several = machine.cores > 1
    short = is_short(machine.limit_bytes, machine.left_bytes)
    best = "recycle"
    if short:
        best = "deferred" if several else "dontneed"
    won, share = gain(best)
    if share < _WORTH:
        best, won, share = "system", 0.0, 0.0

    said = [
        f"A GiB of new arrays costs NumPy {_ms(now)} beyond {_ms(costs.warm_fill_ms)} for writing "
        f"it: {_ms(costs.first_touch_ms)} to touch it first, {_ms(_freeing(costs))} to free it."
    ]
    if short:
        said.append(
            f"Memory is short, so nothing idle should be kept: recycle would win {_of(recycle)}, "
            f"but with room only."
        )
    elif best == "recycle":
        said.append(f"Where arrays of like size come and go, recycle wins {_of(recycle)}.")
    if best in ("deferred", "dontneed"):
        said.append(f"{best} gives everything back at once, and wins {_of((won, share))}.")
    elif best == "system":
        said.append("There is nothing to win here worth changing a program for.")
    elif not several:
        said.append("deferred wins nothing: with one core, the background works in your time.")
    elif deferred[1] < _WORTH:
        said.append(f"Without reuse there is little to win: deferred wins {_of(deferred)}.")
    else:
        said.append(f"Where arrays are not made again, deferred wins {_of(deferred)}.")
    return Verdict(pages, best, won, share, " ".join(said))


def _findings(machine: Machine, measured: Measured, gpu: GpuReport) -> Iterator[str]:
    if measured.note is not None:
        yield measured.note
    yield from _findings_on_pages(machine, measured)
    slow = [each for each in (measured.small, measured.huge) if each and _was_untouched(each)]
    if slow:
        worst = max(slow, key=lambda each: each.warm_up_ms)
        yield (
            f"Memory that nobody had touched since the machine started costs up to "
            f"{_ms(worst.warm_up_ms)} per GiB at its first fill; later fills of fresh memory "
            f"{_ms(worst.first_touch_ms + worst.warm_fill_ms)}."
        )
    touched = [each.nbytes for each in (measured.small, measured.huge) if each is not None]
    if touched and min(touched) < measured.wanted_bytes:
        yield (
            f"Measured with {format_size(min(touched))} at a time instead of "
            f"{format_size(measured.wanted_bytes)}, for want of memory or time: less exact."
        )
    if is_short(machine.limit_bytes, machine.left_bytes):
        yield (
            f"Memory is short: {_size(machine.left_bytes)} left of {_size(machine.limit_bytes)}."
        )
    if machine.load is not None and machine.load > machine.cores:
        yield (
            f"The machine is busy ({machine.load:.1f} tasks on {machine.cores} cores): figures are "
            "processor time, but may be high all the same."
        )
    if machine.cores == 1:
        yield "This process has one core: what a background thread does, it does in your time."
    if len(machine.numa_nodes) > 1:
        yield (
            f"There are {len(machine.numa_nodes)} NUMA nodes; AnonymousPages(numa=...) chooses "
            "where an arena's memory comes from."
        )
    if machine.numpy_hook is not None:
        yield _HOOKS.get(machine.numpy_hook, f"bigmem.install() reaches: {machine.numpy_hook}.")
    yield from _findings_on_gpu(gpu)


def _was_untouched(costs: PageCosts) -> bool:
    return costs.warm_up_ms > _UNTOUCHED * (costs.first_touch_ms + costs.warm_fill_ms)


def _findings_on_pages(machine: Machine, measured: Measured) -> Iterator[str]:
    if measured.huge_share is None:
        return
    if measured.huge is None:
        yield f"Huge pages are not to be had: {_refusal(machine, measured.huge_share)}."
    else:
        yield f"Huge pages are had: {measured.huge_share:.0%} of what asked for them."
        if measured.small is not None:
            yield (
                f"First touch costs {_ms(measured.small.first_touch_ms)} per GiB in small pages, "
                f"{_ms(measured.huge.first_touch_ms)} in huge ones."
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
        if gpu.note is not None and gpu.devices != 0:
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
            f"Pinning costs {_ms(pinning)} per GiB to allocate and free: it pays from "
            f"{_times(pinning / saved)} of the same buffer on."
        )
    else:
        yield f"Pinning costs {_ms(pinning)} per GiB, and makes copies no faster here."


def _changes(machine: Machine, measured: Measured, gpu: GpuReport) -> Iterator[Change]:
    yield from _changes_of_huge_pages(machine, measured)
    yield from _changes_of_groups(machine)
    yield from _changes_of_promises(machine)
    yield from _changes_of_limits(machine, gpu)
    if machine.stalls is False:
        yield Change(
            "let the kernel tell how long tasks wait for memory (PSI)",
            "without it, warm memory goes back only when a limit is near",
            "boot with psi=1 on the kernel's command line",
        )


def _changes_of_huge_pages(machine: Machine, measured: Measured) -> Iterator[Change]:
    huge = machine.huge_pages
    if measured.huge is not None:
        off = machine.numpy_huge_variable == "0"
        if off and measured.numpy_huge_share is not None and measured.small is not None:
            saved = measured.small.first_touch_ms - measured.huge.first_touch_ms
            if measured.numpy_huge_share < MOST_PAGES and saved > 0:
                yield Change(
                    "let NumPy and bigmem ask for huge pages",
                    f"first touch costs {_ms(saved)} per GiB less in them",
                    f"unset {NUMPY_HUGE_VARIABLE}",
                )
        return
    if measured.huge_share is None or huge.enabled is None:
        return
    if huge.enabled == "never":
        yield Change(
            "let programs ask for huge pages",
            "they make first touch and freeing several times cheaper on most machines",
            f"echo madvise > {_THP}/enabled",
        )
    elif huge.allowed is False:
        yield Change(
            "let this process have huge pages",
            "whoever started it took them away",
            "start it without prctl(PR_SET_THP_DISABLE)",
        )
    elif huge.defrag in ("never", "defer"):
        yield Change(
            "let page faults make room for huge pages",
            f"only {measured.huge_share:.0%} of what asked for huge pages got any",
            f"echo madvise > {_THP}/defrag",
        )
    else:
        yield Change(
            "make room for huge pages",
            f"only {measured.huge_share:.0%} of what asked for huge pages got any",
            "echo 1 > /proc/sys/vm/compact_memory",
        )


def _changes_of_groups(machine: Machine) -> Iterator[Change]:
    # The innermost of those that are as tight counts: it has to grow first.
    tightest = min(machine.groups, key=lambda group: group.left_bytes, default=None)
    if tightest is None:
        return
    if is_short(tightest.limit_bytes, tightest.left_bytes):
        why = f"{_size(tightest.left_bytes)} of {_size(tightest.limit_bytes)} are left"
    elif tightest.limit_bytes < _SMALL_GROUP:
        why = f"{_size(tightest.limit_bytes)} hold no huge arrays"
    else:
        return
    yield Change("raise the memory limit of the control group", why, _limit_command(tightest))


def _limit_command(group: MemoryGroup) -> str:
    file = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    return f"echo BYTES > {group.directory}/{file}"


def _changes_of_promises(machine: Machine) -> Iterator[Change]:
    promised = machine.overcommit
    if promised.mode != 2 or promised.limit_bytes is None or promised.committed_bytes is None:
        return
    left = max(promised.limit_bytes - promised.committed_bytes, 0)
    if machine.available_bytes is None or left < machine.available_bytes:
        yield Change(
            "let the kernel promise more memory",
            f"vm.overcommit_memory=2 leaves {_size(left)} to promise",
            "sysctl vm.overcommit_memory=0 (or a higher vm.overcommit_ratio)",
        )


def _changes_of_limits(machine: Machine, gpu: GpuReport) -> Iterator[Change]:
    space, data = machine.limits.address_space_bytes, machine.limits.data_bytes
    most = machine.memory_bytes
    if space is not None and (most is None or space < 2 * most):
        yield Change(
            "lift the limit of address space (RLIMIT_AS)",
            f"{_size(space)} leave arenas little room to reserve",
            "ulimit -v unlimited",
        )
    if data is not None and (most is None or data < most):
        yield Change(
            "lift the limit of data (RLIMIT_DATA)",
            f"arrays count towards its {_size(data)}",
            "ulimit -d unlimited",
        )
    locked = machine.limits.locked_bytes
    if gpu.devices and locked is not None and locked < _MODEST_LOCKED:
        yield Change(
            "raise the limit of locked memory (RLIMIT_MEMLOCK)",
            f"pinned buffers that count towards its {_size(locked)} (mlock, RDMA, io_uring; not "
            "CUDA's own) end there",
            "ulimit -l unlimited, or memlock in /etc/security/limits.conf",
        )
    mappings = machine.max_mappings
    if mappings is not None and mappings < _USUAL_MAPPINGS:
        yield Change(
            "allow more mappings",
            f"{mappings} are fewer than the kernel's default; each large array of NumPy's is one",
            f"sysctl vm.max_map_count={_USUAL_MAPPINGS}",
        )


def figure(value: float) -> str:
    """As many digits as the figure is worth, without an exponent."""
    decimals = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:.{decimals}f}"


def _ms(milliseconds: float) -> str:
    return f"{figure(milliseconds)} ms"


def _of(gain: tuple[float, float]) -> str:
    return f"{_ms(gain[0])} per GiB ({gain[1]:.0%})"


def _size(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else format_size(nbytes)


def _speed(milliseconds: float) -> str:
    return f"{figure(1e3 / max(milliseconds, _FASTEST))} GiB/s"


def _times(copies: float) -> str:
    whole = int(copies) + 1
    return "1 copy" if whole == 1 else f"{whole} copies"
