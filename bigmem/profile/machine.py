"""What this machine and process are set to, as far as memory is concerned: facts, no judgement.

Every fact is read from the kernel's files below a root, so that tests can make up machines. What a
machine does not tell is `None`.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bigmem import _core, numpy_hook, osmem, pressure

NUMPY_HUGE_VARIABLE = "NUMPY_MADVISE_HUGEPAGE"
"""``0`` in the environment keeps NumPy from asking for huge pages."""

_THP = "sys/kernel/mm/transparent_hugepage"
_CAP_IPC_LOCK = 14


@dataclass(frozen=True, slots=True)
class HugePages:
    """The settings of transparent huge pages.

    Attributes
    ----------
    enabled, defrag
        The chosen word of the settings of these names; `None` where the kernel has none.
    khugepaged
        Whether the kernel's own thread may make room for the huge pages that it puts together.
    allowed
        Whether this process may have any (``PR_SET_THP_DISABLE`` takes them from a process and
        its children).
    """

    enabled: str | None
    defrag: str | None
    khugepaged: bool | None
    allowed: bool | None


@dataclass(frozen=True, slots=True)
class Overcommit:
    """How much memory the kernel promises: its mode 0, 1 or 2, and bytes for mode 2."""

    mode: int | None
    ratio: int | None
    limit_bytes: int | None
    committed_bytes: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Soft limits of this process in bytes (``RLIMIT_AS``, ``_DATA``, ``_MEMLOCK``).

    `None` is no limit; that of locked memory does not bind a process with ``CAP_IPC_LOCK``.
    """

    address_space_bytes: int | None
    data_bytes: int | None
    locked_bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group that binds this process: what it limits, and what is left of it."""

    version: int
    directory: str
    limit_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """All of it.

    Attributes
    ----------
    cores, machine_cores
        Those that this process may run on, and all there are.
    load
        Average number of the machine's tasks that ran or wanted to, over the last minute.
    limit_bytes, left_bytes
        What this process may use: the tightest of the machine and its control groups.
    groups
        Control groups with a memory limit, the innermost first.
    stalls
        Whether the kernel tells how long tasks wait for memory (PSI); `None` where it tells
        nothing at all.
    numpy_huge_variable
        The value of `NUMPY_HUGE_VARIABLE`, if it is set.
    numpy_hook
        How `bigmem.install` reaches the threads, in the words of `bigmem.numpy_hook.mechanism`.
    """

    kernel: str
    architecture: str
    virtual: bool
    cores: int
    machine_cores: int
    load: float | None
    memory_bytes: int | None
    available_bytes: int | None
    swap_bytes: int | None
    swap_free_bytes: int | None
    limit_bytes: int | None
    left_bytes: int | None
    huge_pages: HugePages
    overcommit: Overcommit
    limits: Limits
    groups: tuple[MemoryGroup, ...]
    stalls: bool | None
    numa_nodes: tuple[int, ...]
    max_mappings: int | None
    python: str
    numpy: str
    numpy_huge_variable: str | None
    numpy_hook: str


def probe_machine(root: Path = Path("/")) -> Machine:
    """Read all of it.

    Parameters
    ----------
    root
        The file system to look at.
    """
    meminfo = _fields(root / "proc/meminfo")
    status = _fields(root / "proc/self/status")
    groups = pressure.find_groups(root)
    memory = _core.MemoryLimit([*groups], str(root / "proc/meminfo"))
    return Machine(
        kernel=platform.release(),
        architecture=platform.machine(),
        virtual=" hypervisor" in _text(root / "proc/cpuinfo"),
        cores=len(os.sched_getaffinity(0)),
        machine_cores=os.cpu_count() or 1,
        load=_load(root),
        memory_bytes=_kilobytes(meminfo, "MemTotal"),
        available_bytes=_kilobytes(meminfo, "MemAvailable"),
        swap_bytes=_kilobytes(meminfo, "SwapTotal"),
        swap_free_bytes=_kilobytes(meminfo, "SwapFree"),
        limit_bytes=memory.limit(),
        left_bytes=memory.headroom(),
        huge_pages=_huge_pages(root, status),
        overcommit=Overcommit(
            mode=_number(root / "proc/sys/vm/overcommit_memory"),
            ratio=_number(root / "proc/sys/vm/overcommit_ratio"),
            limit_bytes=_kilobytes(meminfo, "CommitLimit"),
            committed_bytes=_kilobytes(meminfo, "Committed_AS"),
        ),
        limits=Limits(
            address_space_bytes=_soft_limit(resource.RLIMIT_AS),
            data_bytes=_soft_limit(resource.RLIMIT_DATA),
            locked_bytes=None if _may_lock_all(status) else _soft_limit(resource.RLIMIT_MEMLOCK),
        ),
        groups=tuple(each for group in groups if (each := _limited(group)) is not None),
        stalls=_tells_stalls(root, groups) if meminfo else None,
        numa_nodes=osmem.numa_nodes(),
        max_mappings=_number(root / "proc/sys/vm/max_map_count"),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        numpy=np.__version__,
        numpy_huge_variable=os.environ.get(NUMPY_HUGE_VARIABLE),
        numpy_hook=numpy_hook.mechanism(),
    )


def _huge_pages(root: Path, status: dict[str, str]) -> HugePages:
    khugepaged = _number(root / _THP / "khugepaged/defrag")
    allowed = status.get("THP_enabled")
    return HugePages(
        enabled=_chosen(root / _THP / "enabled"),
        defrag=_chosen(root / _THP / "defrag"),
        khugepaged=None if khugepaged is None else bool(khugepaged),
        allowed=None if allowed is None else allowed != "0",
    )


def _load(root: Path) -> float | None:
    words = _text(root / "proc/loadavg").split()
    return float(words[0]) if words else None


def _limited(group: pressure.Group) -> MemoryGroup | None:
    """The group's figures alone, if it has a limit."""
    memory = _core.MemoryLimit([group], os.devnull)
    limit, left = memory.limit(), memory.headroom()
    return None if limit is None or left is None else MemoryGroup(*group, limit, left)


def _tells_stalls(root: Path, groups: list[pressure.Group]) -> bool:
    files = [Path(group.directory) / "memory.pressure" for group in groups]
    return any(_text(file) for file in [*files, root / "proc/pressure/memory"])


def _soft_limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    # Limits above what any process can address are none.
    return None if soft == resource.RLIM_INFINITY or soft >= sys.maxsize else soft


def _may_lock_all(status: dict[str, str]) -> bool:
    return bool(int(status.get("CapEff", "0"), 16) >> _CAP_IPC_LOCK & 1)


def _fields(path: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in _text(path).splitlines())
    return {name: value.strip() for name, _, value in lines}


def _kilobytes(fields: dict[str, str], name: str) -> int | None:
    words = fields.get(name, "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def _chosen(path: Path) -> str | None:
    """The word in brackets, which is how the kernel marks the setting that holds."""
    return _text(path).partition("[")[2].partition("]")[0] or None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
