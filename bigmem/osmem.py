"""What Python needs to know of the operating system's memory. No policy."""

import os
from functools import cache
from pathlib import Path

from . import _core

_NODES = Path("/sys/devices/system/node/online")
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_STATUS = Path("/proc/self/status")
_ROLLUP = Path("/proc/self/smaps_rollup")
_MEMINFO = Path("/proc/meminfo")
_MAPS = Path("/proc/self/maps")


def transparent_huge_pages() -> str:
    """The system's mode: ``"always"``, ``"madvise"`` or ``"never"`` (also where unsupported)."""
    try:
        modes = _THP.read_text()
    except OSError:
        return "never"
    return modes.partition("[")[2].partition("]")[0] or "never"


@cache
def huge_pages_work() -> bool:
    """Whether memory of this process that asks for 2 MiB pages gets any.

    Found by trying, at the first call only: the system's mode does not know of ``prctl``, of a
    kernel without them, or of one that has none left. It takes the time of touching 2 MiB.
    """
    return _core.huge_pages_work()


def numa_nodes() -> tuple[int, ...]:
    """The numbers of the machine's NUMA nodes; empty where the kernel knows of none."""
    try:
        ranges = _NODES.read_text().strip().split(",")
    except OSError:
        return ()
    ends = [list(map(int, part.split("-"))) for part in ranges]
    return tuple(node for end in ends for node in range(end[0], end[-1] + 1))


@cache
def physical_bytes() -> int:
    """Memory and swap of the machine, in bytes."""
    return _field(_MEMINFO, "MemTotal") + _field(_MEMINFO, "SwapTotal")


def resident_bytes() -> int:
    """Bytes of this process that are in memory (VmRSS)."""
    return _field(_STATUS, "VmRSS")


def resident_bytes_of(process: int) -> int | None:
    """Bytes of any process that are in memory; `None` once it has ended."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int:
    """Highest `resident_bytes` of this process so far (VmHWM).

    The figure of getrusage survives an exec, and would be the parent's.
    """
    return _field(_STATUS, "VmHWM")


def huge_page_bytes() -> int:
    """Bytes of this process that are anonymous huge pages."""
    return _field(_ROLLUP, "AnonHugePages")


def available_bytes() -> int:
    """Bytes that the whole machine could still hand out (MemAvailable)."""
    return _field(_MEMINFO, "MemAvailable")


def is_writable(address: int) -> bool:
    """Whether this process may write to the page at `address`."""
    for line in _MAPS.read_text().splitlines():
        span, rights, *_ = line.split()
        begin, end = (int(border, 16) for border in span.split("-"))
        if begin <= address < end:
            return "w" in rights
    return False


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    raise OSError(f"{path} has no {name}")
