"""A memory control group of the tests' own, where one can be made."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bigmem import pressure
from bigmem.pressure import Group

# Programs in a process of their own begin with this; its arguments are `arguments_of(group)`.
JOIN = """
import os, sys
group, file = sys.argv[1:3]
with open(f"{group}/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
def set_limit(nbytes):
    with open(f"{group}/{file}", "w") as limit:
        limit.write(str(nbytes))
"""


@contextmanager
def memory_group(limit: int) -> Iterator[Group]:
    """A group with this limit in bytes; skips the test where none can be made."""
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
            file.write_text(str(limit))
            yield Group(version, str(directory))
            return
        finally:
            directory.rmdir()
    pytest.skip(f"no memory control group can be made here: {'; '.join(refusals)}")


def arguments_of(group: Group) -> tuple[str, str]:
    """What `JOIN` wants to know."""
    return group.directory, pressure._LIMIT_FILES[group.version]
