"""Memory limits in a real control group, where one can be made."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bigmem import pressure
from bigmem.pressure import Group

Run = Callable[..., str]
MIB = 1 << 20

JOIN = """
import os, sys
group, file = sys.argv[1:3]
with open(f"{group}/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
def set_limit(nbytes):
    with open(f"{group}/{file}", "w") as limit:
        limit.write(str(nbytes))
import numpy as np
import bigmem
from bigmem import pressure
MIB = 1 << 20
assert pressure.find_groups()[0].directory == group, pressure.find_groups()
"""


@pytest.fixture
def group() -> Iterator[Group]:
    """A memory control group of our own, with a limit of 768 MiB."""
    mountinfo = Path("/proc/self/mountinfo").read_text()
    refusals = ["no memory controller is mounted"]
    for version, _, mount_point in pressure._mounts(mountinfo):
        directory = Path(mount_point) / f"bigmem-test-{os.getpid()}"
        file = directory / pressure._LIMIT_FILES[version]
        try:
            directory.mkdir()
        except OSError as error:
            refusals.append(str(error))
            continue
        try:
            if not file.exists():
                refusals.append(f"{file} does not exist")
                continue
            file.write_text(str(768 * MIB))
            yield Group(version, str(directory))
            return
        finally:
            directory.rmdir()
    pytest.skip(f"no memory control group can be made here: {'; '.join(refusals)}")


ALLOCATORS = {
    "deferred": "bigmem.make('deferred')",
    "recycle": "bigmem.make('recycle')",
    "dontneed": "bigmem.make('dontneed')",
    "mapped-deferred": "bigmem.MappedAllocator(release=bigmem.Deferred())",
}


@pytest.mark.parametrize("sizes", [(512,), (300, 512, 420)], ids=["equal", "alternating"])
@pytest.mark.parametrize("name", ALLOCATORS)
def test_a_loop_larger_than_the_group_in_all_is_never_killed(
    run_python: Run, group: Group, name: str, sizes: tuple[int, ...]
) -> None:
    run_python(
        f"""
        allocator = {ALLOCATORS[name]}
        assert pressure.limit() == 768 * MIB
        for step in range(20):
            array = bigmem.empty({sizes}[step % {len(sizes)}] * MIB, np.uint8, allocator=allocator)
            array.fill(step)
            del array
        """,
        group.directory,
        pressure._LIMIT_FILES[group.version],
        prefix=JOIN,
        timeout=120,
    )


def test_a_share_follows_the_limit_of_the_group(run_python: Run, group: Group) -> None:
    run_python(
        """
        budget = bigmem.Budget("80%", timeout=0.1)
        assert budget.limit == 768 * MIB * 8 // 10
        allocator = bigmem.ArenaAllocator(
            pages=bigmem.AnonymousPages(huge="never"), budget=budget,
            release=bigmem.Recycle(decay=1000))
        kept = allocator.allocate(200 * MIB)
        set_limit(500 * MIB)
        assert budget.limit == 400 * MIB
        # The allocation itself finds out, without anybody asking for the limit.
        set_limit(1000 * MIB)
        block = allocator.allocate(500 * MIB)
        assert budget.limit == 800 * MIB
        block.release()
        assert allocator.stats().warm == 500 * MIB
        set_limit(400 * MIB)
        import time
        time.sleep(1.1)
        small = allocator.allocate(1 * MIB)
        assert budget.used <= budget.limit == 320 * MIB
        try:
            allocator.allocate(300 * MIB)
        except bigmem.OutOfMemory as error:
            assert "budget of 320 MiB" in str(error), error
        else:
            raise AssertionError("more than the limit")
        """,
        group.directory,
        pressure._LIMIT_FILES[group.version],
        prefix=JOIN,
    )
