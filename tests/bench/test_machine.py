"""Processes that measure end with those that have started them; versions tell themselves apart."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_for

from bench import machine
from bigmem import osmem

CHILD = "from bench import machine; machine.end_with_parent(); print(1, flush=True); input()"
PARENT = f"""
import subprocess, sys
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], **pipes)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_its_parent(end: signal.Signals) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PARENT], text=True, **pipes) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        os.kill(parent.pid, end)
        parent.wait(60)
        wait_for(lambda: not is_running(child))


def test_warming_up_beside_leaves_no_trace_in_the_peak() -> None:
    before = osmem.peak_resident_bytes()
    machine.warm_up_beside(256 << 20)
    assert osmem.peak_resident_bytes() - before < 128 << 20


def test_the_version_of_sources(tmp_path: Path) -> None:
    for folder in ("a", "b/c"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "a" / "x.py").write_text("1")
    (tmp_path / "b" / "c" / "y.cpp").write_text("2")
    (tmp_path / "b" / "results.json").write_text("3")
    first = machine.sources(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "results.json").write_text("4")
    assert machine.sources(tmp_path / "a", tmp_path / "b") == first
    (tmp_path / "b" / "c" / "y.cpp").write_text("5")
    assert machine.sources(tmp_path / "a", tmp_path / "b") != first


def test_a_process_that_forbids_huge_pages_gets_none() -> None:
    """Whatever the system's setting is: here memory is even asked to have them."""
    program = """
import mmap
from bench import machine
from bigmem import osmem

def huge():
    memory = mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, 32 << 20, 4096):
        memory[at] = 1
    return osmem.huge_page_bytes()

print(osmem.transparent_huge_pages(), huge() > 0)
"""
    asked = [sys.executable, "-c", program]
    setting, had = subprocess.check_output(asked, text=True).split()
    assert had == str(setting != "never")
    forbidden = program.replace("def huge", "machine.forbid_huge_pages()\ndef huge")
    answer = subprocess.check_output([sys.executable, "-c", forbidden], text=True)
    assert answer.split() == [setting, "False"]


def test_a_process_of_a_regime_that_fails_is_told_in_a_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        machine.in_regime("huge", "bench.layers", "--size", "0")
    assert ended.value.code == "bench.layers ended with 2, on huge pages"
    assert "'0' is no size above 0" in capfd.readouterr().err  # the process itself says why
