"""`bigmem run --trace`: the log of a program that knows nothing of it."""

import os
import subprocess
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


def test_a_log_that_has_no_file_of_its_own_is_refused(refused, monkeypatch, tmp_path: Path):
    # It would replace the process of the tests.
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("this is not refused"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (str(pipe), os.devnull):
        assert f"{place}: a log is made as a file of its own" in refused(
            "run", "--trace", place, "a.py"
        )


def test_a_log_is_not_put_where_the_output_goes(programs, tmp_path: Path) -> None:
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    words = [sys.executable, "-m", "bigmem", "run", "--trace", "stdout", "-c", "print('ran')"]
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            words, cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert (done.returncode, (tmp_path / "out").read_text()) == (2, "")
    assert "stdout: a log is made as a file of its own" in done.stderr
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("place", "reason"),
    [(".", "is a directory"), ("nowhere/log.json", "cannot be written: no such file")],
)
def test_a_log_that_cannot_be_written_is_refused_before_the_program_runs(refused, place, reason):
    assert f"{place}: {reason}" in refused("run", "--trace", place, "a.py")
