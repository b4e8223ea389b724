"""`bigmem run --trace`: the log of a program that knows nothing of it."""

import sys
from pathlib import Path

import pytest

from bigmem.wrappers import traced

PROGRAM = """
import os, subprocess, sys
os.chdir("/")
import numpy as np
a = np.zeros(1 << 18)
b = np.empty(1 << 18)
b[:1000] = 1
del b
subprocess.run([sys.executable, "-c", "import numpy; numpy.ones(1 << 20)"], check=True)
child = os.fork()
if child == 0:
    np.ones(1 << 20)
    os._exit(0)
os.waitpid(child, 0)
print(os.getpid())
"""


def test_a_program_is_logged_and_its_children_are_not(programs, tmp_path: Path):
    script = programs.write("program.py", PROGRAM)
    words = ["-m", "bigmem", "run", "--allocator", "mapped", "--trace", "log.json", script]
    done = programs.finish(programs.start([sys.executable, *words]))
    assert (done.code, done.err) == (0, "")
    events = traced.read(tmp_path / "log.json")
    assert {event["pid"] for event in events} == {int(done.out)}
    made = [event["args"] for event in events if event["name"] == "allocate"]
    assert [(one["nbytes"], one.get("zeroed", False)) for one in made] == [
        (2 << 20, True),
        (2 << 20, False),
    ]
    (released, *_) = [event["args"] for event in events if event["name"] == "release"]
    # In one huge page or in two small ones, whichever there were.
    assert released["touched"] in (8192, 2 << 20)


@pytest.mark.parametrize(
    ("place", "reason"),
    [(".", "is a directory"), ("nowhere/log.json", "cannot be written: no such file")],
)
def test_a_log_that_cannot_be_written_is_refused_before_the_program_runs(refused, place, reason):
    assert f"{place}: {reason}" in refused("run", "--trace", place, "a.py")
