"""What the doctor reads of a machine's settings."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from bigmem.profile.machine import HugePages, MemoryGroup, Overcommit, probe_machine

MIB, GIB = 1 << 20, 1 << 30
THP = "sys/kernel/mm/transparent_hugepage"

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Put a file into a made-up file system, which is `tmp_path`."""

    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return put


@pytest.fixture
def settings(write: Write) -> None:
    write(
        "proc/meminfo",
        "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 33554432 kB\nSwapTotal: 2048 kB\n"
        "SwapFree: 1024 kB\nCommitLimit: 4096 kB\nCommitted_AS: 8 kB\n",
    )
    write("proc/self/status", "Name:\tpython\nCapEff:\t0000000000000000\nTHP_enabled:\t0\n")
    write("proc/cpuinfo", "flags\t\t: fpu vme hypervisor sse\n")
    write("proc/loadavg", "1.25 0.5 0.1 1/100 42\n")
    write("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    write("proc/sys/vm/overcommit_memory", "2\n")
    write("proc/sys/vm/overcommit_ratio", "80\n")
    write("proc/sys/vm/max_map_count", "65530\n")
    write(f"{THP}/enabled", "always madvise [never]\n")
    write(f"{THP}/defrag", "always defer [defer+madvise] madvise never\n")
    write(f"{THP}/khugepaged/defrag", "0\n")
    write("proc/self/cgroup", "0::/work/job\n")
    write("proc/self/mountinfo", "41 31 0:38 / /cg rw,relatime - cgroup2 cgroup2 rw\n")
    for group, limit in (("cg/work", 8 * GIB), ("cg/work/job", "max")):
        write(f"{group}/memory.max", f"{limit}\n")
        write(f"{group}/memory.high", "max\n")
        write(f"{group}/memory.current", f"{5 * GIB}\n")
        write(f"{group}/memory.stat", f"anon 5\ninactive_file {GIB}\n")


@pytest.mark.usefixtures("settings")
def test_every_setting_is_read(tmp_path: Path) -> None:
    machine = probe_machine(tmp_path)
    assert (machine.memory_bytes, machine.available_bytes) == (64 * GIB, 32 * GIB)
    assert (machine.swap_bytes, machine.swap_free_bytes) == (2 * MIB, MIB)
    assert machine.huge_pages == HugePages("never", "defer+madvise", False, False)
    assert machine.overcommit == Overcommit(2, 80, 4 * MIB, 8 * 1024)
    assert machine.max_mappings == 65530
    assert (machine.virtual, machine.load, machine.stalls) == (True, 1.25, True)


@pytest.mark.usefixtures("settings")
def test_only_groups_with_a_limit_are_told(tmp_path: Path) -> None:
    machine = probe_machine(tmp_path)
    # What is in the page cache and idle can be had too.
    assert machine.groups == (MemoryGroup(2, str(tmp_path / "cg/work"), 8 * GIB, 4 * GIB),)
    assert (machine.limit_bytes, machine.left_bytes) == (8 * GIB, 4 * GIB)


@pytest.mark.usefixtures("settings")
def test_stalls_may_be_told_of_the_group_alone_or_not_at_all(tmp_path: Path, write: Write) -> None:
    (tmp_path / "proc/pressure/memory").unlink()
    assert probe_machine(tmp_path).stalls is False
    write("cg/work/job/memory.pressure", "some avg10=0.00\n")
    assert probe_machine(tmp_path).stalls is True


@pytest.mark.usefixtures("settings")
def test_who_may_lock_all_memory_has_no_limit_of_it(tmp_path: Path, write: Write) -> None:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = soft == resource.RLIM_INFINITY
    assert probe_machine(tmp_path).limits.locked_bytes == (None if unlimited else soft)
    write("proc/self/status", "CapEff:\t000001ffffffffff\n")
    assert probe_machine(tmp_path).limits.locked_bytes is None


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    machine = probe_machine(tmp_path)
    assert machine.huge_pages == HugePages(None, None, None, None)
    assert machine.overcommit == Overcommit(None, None, None, None)
    assert (machine.limit_bytes, machine.left_bytes, machine.groups) == (None, None, ())
    assert (machine.memory_bytes, machine.stalls, machine.load) == (None, None, None)


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMPY_MADVISE_HUGEPAGE", "0")
    machine = probe_machine()
    assert machine.memory_bytes == psutil.virtual_memory().total
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.numpy == np.__version__
    assert machine.numpy_huge_variable == "0"
    assert machine.left_bytes is not None
    assert machine.limit_bytes is not None
    assert 0 < machine.left_bytes <= machine.limit_bytes <= machine.memory_bytes
