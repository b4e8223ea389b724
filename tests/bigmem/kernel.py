"""Memory as the kernel accounts for it, and a kernel that refuses; for tests and their children."""

import ctypes
import platform
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bigmem import _core

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE = 4096
# The numbers of the core's enumerations.
PLAIN, SMALL, HUGE = 0, 1, 2
DONTNEED, FREE = 0, 1
UNSET, LOCAL, INTERLEAVE, NODE = 0, 1, 2, 3
ORDINARY, SECRET = (UNSET, 0, False), (UNSET, 0, True)
LIBC = ctypes.CDLL(None, use_errno=True)
# System calls by number, as seccomp knows them.
NUMBERS = {
    "x86_64": {"madvise": 28, "mbind": 237, "mremap": 25, "mlock2": 325},
    "aarch64": {"madvise": 233, "mbind": 235, "mremap": 216, "mlock2": 284},
}.get(platform.machine(), {})


def bytes_at(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), np.uint8)


def areas(begin: int, nbytes: int) -> list[dict[str, Any]]:
    """The kernel's account of the mappings that overlap a range."""
    found: list[dict[str, Any]] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            first, last = (int(part, 16) for part in name.split("-"))
            found.append({"begin": first, "end": last})
        elif name == "VmFlags:":
            found[-1]["flags"] = set(rest.split())
        elif rest.endswith("kB"):
            found[-1][name[:-1]] = int(rest.split()[0]) * 1024
    return [area for area in found if area["begin"] < begin + nbytes and begin < area["end"]]


def flags(begin: int, nbytes: int) -> set[str]:
    """Those that every mapping of the range has; no mapping may differ in those that matter."""
    each = [area["flags"] & {"hg", "nh", "dd", "wf", "lo"} for area in areas(begin, nbytes)]
    assert all(some == each[0] for some in each), each
    return set(each[0])


def policy(address: int) -> str:
    lines = [line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines()]
    return next(line[1] for line in reversed(lines) if int(line[0], 16) <= address)


def resident(address: int, nbytes: int) -> list[bool]:
    """Which pages of a range are in memory."""
    vector = (ctypes.c_ubyte * (nbytes // PAGE))()
    assert LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), vector) == 0
    return [bool(byte & 1) for byte in vector]


def refuse(number: int, error: int, third: int | None = None) -> None:
    """Let a system call fail from now on, always or with this third argument, by seccomp."""
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    steps = [(load, 0, 0, 0), (jump_if_equal, 0, 1 if third is None else 3, number)]
    if third is not None:
        steps += [(load, 0, 0, 32), (jump_if_equal, 0, 1, third)]
    steps += [(answer, 0, 0, 0x00050000 | error), (answer, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    )
    assert LIBC.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert LIBC.prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP


class Range:
    """A reserved and committed range of a table, which calls the table's operations on itself."""

    def __init__(self, table: _core.ProbedPages, nbytes: int, page: int = SMALL) -> None:
        self.table, self.nbytes, self.page = table, nbytes, page
        self.address = table.reserve(nbytes, 2 * MIB, page)
        assert table.commit(self.address, nbytes, page) == 0
        self.bytes = bytes_at(self.address, nbytes)

    def decommit(self, advice: int = DONTNEED) -> tuple[int, bool]:
        return self.table.decommit(self.address, self.nbytes, self.page, advice)

    def recommit(self) -> None:
        assert self.table.commit(self.address, self.nbytes, self.page) == 0
