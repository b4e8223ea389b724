"""Memory limits of control groups and the machine, and what happens when they come near."""

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_for

import bigmem
from bigmem import _core, pressure
from bigmem.native import NativeAllocator
from bigmem.pressure import find_groups

Native = Callable[..., NativeAllocator]
Run = Callable[..., str]
MIB = 1 << 20
GIB = 1 << 30
NO_LIMIT_V1 = "9223372036854771712"
MEMINFO = "MemTotal: {} kB\nMemFree: 1 kB\nMemAvailable: {} kB\nBuffers: 5 kB\n"
MOUNT_V1 = "35 31 0:29 {} {} rw,relatime shared:9 - cgroup cgroup rw,memory\n"
MOUNT_V2 = "41 31 0:38 {} {} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
OTHER_MOUNTS = (
    "23 1 254:0 / / rw,relatime - ext4 /dev/root rw\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
)


class Tree:
    """A file system with control groups in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, cgroup: str, mounts: str) -> None:
        self.write("proc/self/cgroup", cgroup)
        self.write("proc/self/mountinfo", OTHER_MOUNTS + mounts)

    def machine(self, total: int, available: int) -> None:
        self.write("proc/meminfo", MEMINFO.format(total // 1024, available // 1024))

    def v1(self, path: str, limit: int | str, usage: int = 0, droppable: int = 0) -> None:
        at = f"{path}/memory."
        self.write(at + "limit_in_bytes", f"{limit}\n")
        self.write(at + "usage_in_bytes", f"{usage}\n")
        stat = f"cache 1\ninactive_file 77\ntotal_cache 9\ntotal_inactive_file {droppable}\n"
        self.write(at + "stat", stat + "total_unevictable 0\n")

    def v2(
        self,
        path: str,
        limit: int | str,
        usage: int = 0,
        droppable: int = 0,
        high: int | str = "max",
    ) -> None:
        at = f"{path}/memory."
        self.write(at + "max", f"{limit}\n")
        self.write(at + "high", f"{high}\n")
        self.write(at + "current", f"{usage}\n")
        self.write(at + "stat", f"anon 5\ninactive_anon 3\ninactive_file {droppable}\nfile 1\n")

    def groups(self) -> list[tuple[int, str]]:
        return [(v, d.removeprefix(str(self.root))) for v, d in find_groups(self.root)]

    def memory(self) -> _core.MemoryLimit:
        groups = [(v, d) for v, d in find_groups(self.root)]
        return _core.MemoryLimit(groups, str(self.root / "proc/meminfo"))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    made.machine(24 * GIB, 20 * GIB)
    return made


@pytest.fixture
def watched(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    """The same, looked at by the allocators of this process."""
    with monkeypatch.context() as patch:
        patch.setattr(pressure, "_root", tree.root)
        yield tree
    pressure._watch()


def test_version_1_counts_every_ancestor(tree: Tree) -> None:
    tree.process("9:pids:/\n4:memory:/a/b\n0::/\n", MOUNT_V1.format("/", "/sys/fs/cgroup/memory"))
    top = "/sys/fs/cgroup/memory"
    tree.v1(top, NO_LIMIT_V1, 10 * GIB)
    tree.v1(f"{top}/a", 2 * GIB, GIB, GIB // 4)
    tree.v1(f"{top}/a/b", 3 * GIB, GIB // 2)
    tree.v1(f"{top}/a/c", MIB)
    assert tree.groups() == [(1, f"{top}/a/b"), (1, f"{top}/a"), (1, top)]
    assert tree.memory().limit() == 2 * GIB
    assert tree.memory().headroom() == 2 * GIB - GIB + GIB // 4


def test_version_2_counts_every_ancestor_and_the_high_mark(tree: Tree) -> None:
    tree.process("0::/a/b\n", MOUNT_V2.format("/", "/sys/fs/cgroup"))
    top = "/sys/fs/cgroup"
    tree.write(f"{top}/cgroup.procs", "")  # the root has no memory files
    tree.v2(f"{top}/a", 4 * GIB, 3 * GIB, droppable=0)
    tree.v2(f"{top}/a/b", "max", GIB, high=2 * GIB, droppable=GIB // 2)
    assert tree.groups() == [(2, f"{top}/a/b"), (2, f"{top}/a")]
    assert tree.memory().limit() == 2 * GIB
    assert tree.memory().headroom() == GIB  # of a; b could drop half a GiB


def test_hybrid_machines_have_the_memory_in_version_1(tree: Tree) -> None:
    mounts = MOUNT_V2.format("/", "/sys/fs/cgroup/unified")
    mounts += MOUNT_V1.format("/", "/sys/fs/cgroup/memory")
    tree.process("4:memory,cpu:/job\n0::/session\n", mounts)
    tree.write("/sys/fs/cgroup/unified/session/cgroup.procs", "")
    tree.v1("/sys/fs/cgroup/memory/job", 5 * GIB)
    assert tree.groups() == [(1, "/sys/fs/cgroup/memory/job")]
    assert tree.memory().limit() == 5 * GIB


@pytest.mark.parametrize(
    ("membership", "mount_root"),
    [
        ("/docker/abc", "/docker/abc"),  # the mount is the group, seen from outside
        ("/", "/"),  # a namespace of its own
        ("/docker/abc", "/elsewhere"),  # mounted under another name
        ("/../other", "/"),  # outside the namespace
        ("/a", "/.."),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_in_a_container_the_mount_may_be_the_group(
    tree: Tree, version: int, membership: str, mount_root: str
) -> None:
    prefix, mount = ("0::", MOUNT_V2) if version == 2 else ("7:memory:", MOUNT_V1)
    tree.process(prefix + membership + "\n", mount.format(mount_root, "/sys/fs/cgroup"))
    (tree.v2 if version == 2 else tree.v1)("/sys/fs/cgroup", 6 * GIB)
    assert tree.groups() == [(version, "/sys/fs/cgroup")]
    assert tree.memory().limit() == 6 * GIB


def test_a_group_below_the_mounted_directory(tree: Tree) -> None:
    tree.process("0::/pods/pod7/main\n", MOUNT_V2.format("/pods/pod7", "/cg"))
    tree.v2("/cg/main", GIB)
    tree.v2("/cg", 2 * GIB)
    tree.v2("/cg/pods/pod7/main", MIB)
    assert tree.groups() == [(2, "/cg/main"), (2, "/cg")]


def test_names_with_spaces_and_colons(tree: Tree) -> None:
    tree.process("4:memory:/a:b c\n", MOUNT_V1.format("/", "/my\\040groups"))
    tree.v1("/my groups/a:b c", 7 * GIB)
    assert tree.groups() == [(1, "/my groups/a:b c")]


def test_old_kernels_may_have_parents_that_ignore_their_children(tree: Tree) -> None:
    tree.process("4:memory:/a/b/c\n", MOUNT_V1.format("/", "/cg"))
    for path in ("/cg", "/cg/a", "/cg/a/b", "/cg/a/b/c"):
        tree.v1(path, GIB)
        tree.write(f"{path}/memory.use_hierarchy", "1\n" if path == "/cg/a/b" else "0\n")
    assert tree.groups() == [(1, "/cg/a/b/c"), (1, "/cg/a/b")]


@pytest.mark.parametrize("none", ["max", NO_LIMIT_V1, "9223372036854710272", "x", "", "-1"])
def test_no_limit_leaves_the_machine(tree: Tree, none: str) -> None:
    tree.process("4:memory:/a\n", MOUNT_V1.format("/", "/cg"))
    tree.v1("/cg/a", none, 3 * GIB)
    assert tree.memory().limit() == 24 * GIB
    assert tree.memory().headroom() == 20 * GIB


def test_limits_are_read_anew_and_groups_may_vanish(tree: Tree) -> None:
    tree.process("0::/a\n", MOUNT_V2.format("/", "/cg"))
    tree.v2("/cg/a", 2 * GIB, GIB)
    memory = tree.memory()
    assert (memory.limit(), memory.headroom()) == (2 * GIB, GIB)
    tree.v2("/cg/a", 3 * GIB, GIB)
    assert (memory.limit(), memory.headroom()) == (3 * GIB, 2 * GIB)
    (tree.root / "cg/a/memory.stat").unlink()
    assert memory.headroom() == 2 * GIB
    (tree.root / "cg/a/memory.current").unlink()
    assert memory.headroom() == 20 * GIB
    (tree.root / "cg/a/memory.max").unlink()
    assert (memory.limit(), memory.nearly_exhausted()) == (24 * GIB, False)
    (tree.root / "proc/meminfo").unlink()
    assert (memory.limit(), memory.headroom(), memory.nearly_exhausted()) == (None, None, False)


def test_a_machine_without_any_of_it(tmp_path: Path) -> None:
    assert find_groups(tmp_path) == []


line = st.text(st.sampled_from("0147:/ab.- \\\n") | st.characters(codec="utf-8"), max_size=40)
words = st.sampled_from(
    [
        "0::/",
        "4:memory:",
        "/a",
        "..",
        " - ",
        "cgroup",
        "cgroup2",
        "rw,memory",
        " ",
        "\n",
        ":",
        "\\0",
    ]
)
garbage = st.lists(line | words, max_size=20).map("".join)


@given(cgroup=garbage, mountinfo=garbage)
def test_garbage_is_no_group(
    tmp_path_factory: pytest.TempPathFactory, cgroup: str, mountinfo: str
) -> None:
    tree = Tree(tmp_path_factory.getbasetemp() / "garbage")
    tree.write("proc/self/cgroup", cgroup)
    tree.write("proc/self/mountinfo", mountinfo)
    assert find_groups(tree.root) == []


sizes = st.integers(0, 1 << 44)
limits = sizes | st.just("max")


@given(
    levels=st.lists(st.tuples(limits, limits, sizes, sizes), min_size=1, max_size=4),
    version=st.sampled_from([1, 2]),
    total=sizes,
    available=sizes,
    enough=sizes,
)
def test_the_tightest_level_counts(
    tmp_path_factory: pytest.TempPathFactory,
    levels: list[tuple[int | str, int | str, int, int]],
    version: int,
    total: int,
    available: int,
    enough: int,
) -> None:
    tree = Tree(tmp_path_factory.getbasetemp() / "levels")
    total, available = total // 1024 * 1024, available // 1024 * 1024
    tree.machine(total, available)
    bounds, rooms = [total], [available]
    groups = []
    for depth, (limit, high, usage, droppable) in enumerate(levels):
        directory = f"/cg{depth}"
        groups.append((version, f"{tree.root}{directory}"))
        if version == 2:
            tree.v2(directory, limit, usage, droppable, high)
        else:
            tree.v1(directory, limit, usage, droppable)
        given_limits = [x for x in (limit, high if version == 2 else "max") if isinstance(x, int)]
        if given_limits:
            bounds.append(min(given_limits))
            rooms.append(max(0, min(given_limits) - max(0, usage - droppable)))
    memory = _core.MemoryLimit(groups, str(tree.root / "proc/meminfo"))
    assert memory.limit() == min(bounds)
    assert memory.headroom() == min(rooms)
    room = memory.headroom(enough)
    assert room is not None
    assert room == min(rooms) or min(rooms) >= room >= enough


def test_nearly_full_groups_and_machines(tree: Tree) -> None:
    tree.process("0::/a\n", MOUNT_V2.format("/", "/cg"))
    tree.v2("/cg/a", 1000 * MIB, 940 * MIB)
    memory = tree.memory()
    assert not memory.nearly_exhausted()
    tree.v2("/cg/a", 1000 * MIB, 960 * MIB)
    assert memory.nearly_exhausted()
    tree.v2("/cg/a", 1000 * MIB, 990 * MIB, droppable=100 * MIB)
    assert not memory.nearly_exhausted()
    tree.machine(1000 * MIB, 29 * MIB)
    assert memory.nearly_exhausted()
    tree.machine(1000 * MIB, 32 * MIB)
    assert not memory.nearly_exhausted()


def test_a_stretch_of_pressure_is_one_event(tree: Tree) -> None:
    tree.process("0::/a\n", MOUNT_V2.format("/", "/cg"))
    tree.v2("/cg/a", 1000, 100)
    monitor = _core.PressureMonitor(tree.memory(), [str(tree.root / "no/such/file")])
    assert not monitor.under_pressure(0.0)
    tree.v2("/cg/a", 1000, 990)
    assert not monitor.under_pressure(0.05)  # not looked at again yet
    assert [monitor.under_pressure(0.11 + step / 10) for step in range(20)] == [True] * 20
    assert monitor.events() == 1
    tree.v2("/cg/a", 1000, 100)
    assert not monitor.under_pressure(2.5)
    tree.v2("/cg/a", 1000, 990)
    assert monitor.under_pressure(3.0)
    assert monitor.events() == 2


def stalls(path: Path, seconds: float) -> None:
    total = round(seconds * 1e6)
    path.write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull total=99\n")


def test_pressure_is_tasks_that_wait_for_memory(tree: Tree) -> None:
    path = tree.root / "memory.pressure"
    stalls(path, 5.0)
    monitor = _core.PressureMonitor(tree.memory(), [str(tree.root / "none"), str(path)])
    assert not monitor.under_pressure(0.0)
    stalls(path, 5.1)
    assert not monitor.under_pressure(0.5)
    stalls(path, 5.16)
    assert not monitor.under_pressure(0.55)  # not looked at again yet
    assert monitor.under_pressure(0.7)
    assert monitor.under_pressure(1.6)
    assert not monitor.under_pressure(1.8)
    assert monitor.events() == 1
    # Slowly, in many windows, is none.
    for step in range(40):
        stalls(path, 5.2 + step * 0.012)
        assert not monitor.under_pressure(2.0 + step / 10)
    # Nor is what happened while nobody looked.
    stalls(path, 50.0)
    assert not monitor.under_pressure(100.0)
    stalls(path, 50.2)
    assert monitor.under_pressure(100.3)
    assert monitor.events() == 2


def test_a_stall_file_that_says_nothing_means_no_pressure(tree: Tree) -> None:
    directory = tree.root / "directory"
    directory.mkdir()
    monitor = _core.PressureMonitor(tree.memory(), [str(directory), "/proc/version"])
    assert not any(monitor.under_pressure(step / 10) for step in range(20))


def test_the_kernels_own_stall_file_is_understood(tree: Tree) -> None:
    if not os.access("/proc/pressure/memory", os.R_OK):
        pytest.skip("the kernel has no pressure stall information")
    text = Path("/proc/pressure/memory").read_text()
    path = tree.root / "memory.pressure"
    monitor = _core.PressureMonitor(tree.memory(), [str(path)])
    path.write_text(text)
    assert not monitor.under_pressure(0.0)
    path.write_text(re.sub(r"total=(\d+)", lambda m: f"total={int(m[1]) + 200_000}", text))
    assert monitor.under_pressure(0.5)


def fill(allocator: bigmem.Allocator, nbytes: int) -> bigmem.Block:
    block = allocator.allocate(nbytes)
    memoryview(block)[:: 1 << 12] = bytes(len(range(0, nbytes, 1 << 12)))
    return block


def test_pressure_takes_warm_memory_at_once(watched: Tree, native: Native) -> None:
    watched.process("0::/a\n", MOUNT_V2.format("/", "/cg"))
    watched.v2("/cg/a", GIB, GIB // 2)
    allocator = native(bigmem.Recycle(decay=1000), "never")
    seen = pressure.events()
    fill(allocator, 16 * MIB).release()
    kept = allocator.allocate(4096)  # so that the worker stays awake
    time.sleep(0.3)
    assert allocator.stats().warm == 16 * MIB - 4096
    watched.v2("/cg/a", GIB, GIB - MIB)
    wait_for(lambda: allocator.stats().warm == 0)
    assert pressure.events() == seen + 1
    kept.release()


def test_fresh_memory_makes_idle_memory_give_way_before_the_limit(
    watched: Tree, native: Native
) -> None:
    watched.process("0::/a\n", MOUNT_V2.format("/", "/cg"))
    watched.v2("/cg/a", 16 * GIB, 8 * GIB)
    one = native(bigmem.Recycle(decay=1000), "never")
    other = native(bigmem.Recycle(decay=1000), "never")
    fill(one, 32 * MIB).release()
    blocks = [other.allocate(4 * GIB)]
    # It is not touched yet, so most of these 5 GiB are spoken for.
    watched.v2("/cg/a", 16 * GIB, 11 * GIB)
    blocks.append(other.allocate(GIB // 2))
    assert one.stats().warm == 32 * MIB
    blocks.append(other.allocate(GIB))
    assert one.stats().warm == 0
