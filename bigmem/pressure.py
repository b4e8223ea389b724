"""How much memory this process may use, and whether it runs short.

Control groups of version 1 and 2 and the machine itself are looked at. This module finds out where
they are; the core reads the figures, because it needs them where no Python may run.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from . import _core

_LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}
_MEMINFO = "proc/meminfo"
_STALLS = "proc/pressure/memory"
_ESCAPE = re.compile(r"\\([0-7]{3})")


class Group(NamedTuple):
    """A control group with a memory controller: its version, 1 or 2, and its directory."""

    version: int
    directory: str


def find_groups(root: Path = Path("/")) -> list[Group]:
    """The control groups whose memory limits bind this process, the innermost first.

    Parameters
    ----------
    root
        The file system to look at.

    Returns
    -------
    list of Group
        Empty where there are none, or none that can be read.
    """
    memberships = _memberships(_text(root / "proc/self/cgroup"))
    groups: dict[Group, None] = {}
    for version, mount_root, mount_point in _mounts(_text(root / "proc/self/mountinfo")):
        if version in memberships:
            top = root / mount_point.lstrip("/")
            for depth, directory in enumerate(_ancestry(top, mount_root, memberships[version])):
                if depth and version == 1 and _ignores_children(directory):
                    break
                if os.access(directory / _LIMIT_FILES[version], os.R_OK):
                    groups[Group(version, str(directory))] = None
    return list(groups)


def limit() -> int | None:
    """Bytes that this process may use: the smallest limit of its groups and the machine."""
    return _watch().limit()


def headroom() -> int | None:
    """Bytes that may become resident before a limit is reached, page cache dropped first."""
    return _watch().headroom()


def events() -> int:
    """How often memory has run short so far, as far as the reclaim workers saw it.

    They look while there is memory to give back, and give it back when it happens.
    """
    return _core.pressure_events()


_root = Path("/")


class _Watched(NamedTuple):
    root: Path
    memberships: str
    memory: _core.MemoryLimit


_watched: _Watched | None = None


def _watch() -> _core.MemoryLimit:
    """Let the core look at the groups of this moment: a process may have been moved."""
    global _watched
    memberships = _text(_root / "proc/self/cgroup")
    if _watched is None or _watched[:2] != (_root, memberships):
        groups = find_groups(_root)
        places = [(group.version, group.directory) for group in groups]
        memory = _core.MemoryLimit(places, str(_root / _MEMINFO))
        # Stalls of the group itself tell more than those of the machine.
        stall_files = [f"{group.directory}/memory.pressure" for group in groups[:1]]
        stall_files.append(str(_root / _STALLS))
        _core.watch_memory(_core.PressureMonitor(memory, stall_files))
        _watched = _Watched(_root, memberships, memory)
    return _watched.memory


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _memberships(cgroup: str) -> dict[int, str]:
    """The group of this process in each version, from the text of ``/proc/self/cgroup``."""
    found = {}
    for line in cgroup.split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            if "memory" in controllers.split(","):
                found[1] = path
            elif number == "0" and not controllers:
                found[2] = path
    return found


def _mounts(mountinfo: str) -> Iterator[tuple[int, str, str]]:
    """Version, root and mount point of each hierarchy that may hold memory controllers."""
    for line in mountinfo.split("\n"):
        place, _, source = line.partition(" - ")
        fields = place.split(" ")
        kind, _, options = source.partition(" ")
        if len(fields) < 5:
            continue
        if kind == "cgroup2":
            yield 2, _unescape(fields[3]), _unescape(fields[4])
        elif kind == "cgroup" and "memory" in options.split(" ")[-1].split(","):
            yield 1, _unescape(fields[3]), _unescape(fields[4])


def _unescape(path: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), path)


def _ancestry(top: Path, mount_root: str, membership: str) -> list[Path]:
    """Directories from the group's own up to the mount point."""
    path = PurePosixPath(membership)
    # In a container the mounted directory may be the group itself, under another name.
    inside = path.is_relative_to(mount_root) and ".." not in path.parts
    relative = path.relative_to(mount_root) if inside else PurePosixPath()
    return [top / relative, *(top / parent for parent in relative.parents)]


def _ignores_children(directory: Path) -> bool:
    """What old kernels let groups of version 1 do."""
    return _text(directory / "memory.use_hierarchy").strip() == "0"
