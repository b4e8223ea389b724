"""What a system administrator, or whoever starts the program, could change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bigmem.profile.costs import GIB, MOST_PAGES, Measured
from bigmem.profile.gpu import GpuReport
from bigmem.profile.machine import NUMPY_HUGE_VARIABLE, Machine, MemoryGroup
from bigmem.profile.policies import is_short
from bigmem.profile.wording import ms, size

_THP = "/sys/kernel/mm/transparent_hugepage"
# Control groups below this hold no huge arrays, however empty they are.
_SMALL_GROUP = 2 * GIB
# Enough locked memory for the buffers of a few large copies.
_MODEST_LOCKED = GIB
# What the kernel allows a process by default.
_USUAL_MAPPINGS = 65530


@dataclass(frozen=True, slots=True)
class Change:
    """Something to change: what, why, and the file or command."""

    what: str
    why: str
    how: str


def propose(machine: Machine, measured: Measured, gpu: GpuReport) -> Iterator[Change]:
    """Propose what would help here, the most effective first; nothing where all is well."""
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
                    f"first touch costs {ms(saved)} per GiB less in them",
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
    tightest = min(machine.groups, key=lambda group: group.left_bytes, default=None)
    if tightest is None:
        return
    if is_short(tightest.limit_bytes, tightest.left_bytes):
        why = f"{size(tightest.left_bytes)} of {size(tightest.limit_bytes)} are left"
    elif tightest.limit_bytes < _SMALL_GROUP:
        why = f"{size(tightest.limit_bytes)} hold no huge arrays"
    else:
        return
    yield Change("raise the memory limit of the control group", why, _limit_command(tightest))


def _limit_command(group: MemoryGroup) -> str:
    if group.version == 2:
        return f"echo BYTES > {group.directory}/memory.max (and memory.high, if it is lower)"
    return f"echo BYTES > {group.directory}/memory.limit_in_bytes"


def _changes_of_promises(machine: Machine) -> Iterator[Change]:
    promised = machine.overcommit
    if promised.mode != 2 or promised.limit_bytes is None or promised.committed_bytes is None:
        return
    left = max(promised.limit_bytes - promised.committed_bytes, 0)
    if machine.available_bytes is None or left < machine.available_bytes:
        yield Change(
            "let the kernel promise more memory",
            f"vm.overcommit_memory=2 leaves {size(left)} to promise",
            "sysctl vm.overcommit_memory=0 (or a higher vm.overcommit_ratio)",
        )


def _changes_of_limits(machine: Machine, gpu: GpuReport) -> Iterator[Change]:
    space, data = machine.limits.address_space_bytes, machine.limits.data_bytes
    most = machine.memory_bytes
    if space is not None and (most is None or space < 2 * most):
        yield Change(
            "lift the limit of address space (RLIMIT_AS)",
            f"{size(space)} leave arenas little room to reserve",
            "ulimit -v unlimited",
        )
    if data is not None and (most is None or data < most):
        yield Change(
            "lift the limit of data (RLIMIT_DATA)",
            f"arrays count towards its {size(data)}",
            "ulimit -d unlimited",
        )
    locked = machine.limits.locked_bytes
    if gpu.devices and locked is not None and locked < _MODEST_LOCKED:
        yield Change(
            "raise the limit of locked memory (RLIMIT_MEMLOCK)",
            f"pinned buffers that count towards its {size(locked)} (mlock, RDMA, io_uring; not "
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
