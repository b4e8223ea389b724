"""`bigmem profile` as a user runs it."""

import importlib.util
import json
import os
import pty
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from profiled import MIB
from undisturbed import UNDISTURBED

from bigmem.cli import _child, main

LOOP = """\
import json, resource, sys, time
import numpy as np
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
nbytes, freeing = 64 << 20, []
before = faults()
for _ in range(int(sys.argv[1])):
    array = np.empty(nbytes, np.uint8)
    array.fill(1)
    begin = time.perf_counter()
    del array
    freeing.append(time.perf_counter() - begin)
print(json.dumps([faults() - before, freeing]))
"""


def command(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "bigmem", "profile", *words],
        **{"capture_output": True, "text": True, "timeout": 120, "check": False, **options},
    )


# Huge pages are so few that it takes more arrays for the interpreter's own to be few among them.
@pytest.mark.parametrize(("huge", "times"), [(False, 10), (True, 50)], ids=["small", "huge"])
def test_the_truth_about_a_loop_of_fills(tmp_path: Path, huge, times):
    (tmp_path / "loop.py").write_text(LOOP)
    done = command(
        *("--json", "found.json", "-o", "trace.json", "--png", "picture.png"),
        *("loop.py", str(times)),
        cwd=tmp_path,
        env={**os.environ, "NUMPY_MADVISE_HUGEPAGE": str(int(huge))},
    )
    assert done.returncode == 0, done.stderr
    true_faults, true_freeing = json.loads(done.stdout)
    found = json.loads((tmp_path / "found.json").read_text())
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    # Beside those of the loop the interpreter has some before it and as it ends.
    assert true_faults <= found["minor_faults"] <= 1.05 * true_faults
    # Our clock runs inside that of the program, and what lies between is little; but the machine
    # may run something else just then, for longer than a release takes. So each is held to the one
    # bound, and half of them, which cannot all have met that, to the other.
    freeing = [event["dur"] / 1e6 for event in events if event["name"] == "release"]
    within = [ours / true for ours, true in zip(freeing, true_freeing, strict=True)]
    assert max(within) <= 1
    assert statistics.median(within) > 0.8
    assert found["free_s"] == pytest.approx(sum(freeing), abs=1e-9 * times)  # written in ns
    (line,) = found["lines"]
    assert (line["file"], line["line"]) == (str(tmp_path / "loop.py"), 8)
    assert (line["calls"], line["bytes"]) == (times, times * 64 * MIB)
    assert line["small_faults"] + line["huge_faults"] == pytest.approx(true_faults, rel=0.05)
    assert found["tax_s"] == pytest.approx(found["alloc_s"] + found["free_s"] + found["fault_s"])
    assert 0 < found["fault_s"] < found["wall_s"]
    assert found["complete"]
    # All but the first would find warm pages, and all would be let go at once.
    gain = found["free_s"] + (1 - 1 / times) * found["fault_s"]
    assert found["savings_s"]["recycle"] == pytest.approx(gain, rel=0.05)
    assert "loop.py:8  array = np.empty(nbytes, np.uint8)" in done.stderr
    assert "What each release policy would save" in done.stderr
    assert sum(event["name"] == "allocate" for event in events) == times
    assert sum(event["name"] == "resident bytes" for event in events) > 1
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_program_notices_nothing(tmp_path: Path):
    program = "import sys, os; print(sys.argv, input()); print('told', file=sys.stderr); exit(5)"
    done = command(
        *("--json", "j.json", "-c", program, "-x", "--json", "mine"), input="in\n", cwd=tmp_path
    )
    assert done.returncode == 5
    assert done.stdout == "['-c', '-x', '--json', 'mine'] in\n"
    assert done.stderr == (
        "told\nbigmem: NumPy was not imported: there are no arrays to account for\n"
    )
    found = json.loads((tmp_path / "j.json").read_text())
    assert found.pop("wall_s") > 0
    assert (found.pop("lines"), found.pop("complete")) == ([], True)
    for name in ("tax_s", "alloc_s", "free_s", "minor_faults", "fault_s"):
        assert found[name] == 0


def test_a_program_that_waits_for_its_threads_and_for_signals(tmp_path: Path):
    done = command(
        *("-o", "trace.json", "-c", "import numpy\n" + UNDISTURBED),
        cwd=tmp_path,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (done.returncode, done.stdout) == (0, "SIGUSR1 1\n"), done.stderr


def test_a_script_whose_path_is_no_utf_8(tmp_path: Path):
    name = os.fsdecode(b"m\xff.py")
    (tmp_path / name).write_text("import numpy as np\na = np.ones(1 << 20)\n")
    done = command(*("--json", "j.json", "-o", "trace.json", "--png", "p.png", name), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "m\\udcff.py:2  a = np.ones(1 << 20)" in done.stderr
    (line,) = json.loads((tmp_path / "j.json").read_text())["lines"]
    assert line["file"] == str(tmp_path / name)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert f"{tmp_path / name}:2" in {event.get("args", {}).get("line") for event in events}
    assert (tmp_path / "p.png").exists()


def test_a_program_on_an_allocator():
    program = "import numpy as np, bigmem\na = np.ones(1 << 20)\nprint(bigmem.stats().allocations)"
    done = command("--allocator", "recycle", "-c", program)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "The memory tax that is left: recycle" in done.stderr


REFUSALS = {
    "no folder": (["-o", "missing/trace.json"], "missing/trace.json: cannot be written"),
    "a folder": (["--json", "."], "is a directory"),
    "under a file": (["--png", "kept.json/picture.png"], "cannot be written"),
    "one file for two": (["-o", "./kept.json"], "two outputs"),
    "no allocator": (["--allocator", "nope"], "no allocator called 'nope'"),
}


@pytest.mark.parametrize(("options", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_what_would_fail_afterwards_is_refused_before(
    options, reason, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.json").write_text("as it was")
    code = main(["profile", "--json", "kept.json", *options, "-c", "open('ran', 'w')"])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert reason in err
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert (tmp_path / "kept.json").read_text() == "as it was"


def test_a_picture_without_matplotlib_is_refused_before(tmp_path, monkeypatch, capfd):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "--png", "picture.png", "-c", "open('ran', 'w')"]) == 2
    assert capfd.readouterr().err == "bigmem: --png needs matplotlib, which is not installed\n"
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_after_all_is_told(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    program = f"import os; os.rmdir({str(folder)!r})"
    done = command("--json", str(folder / "j.json"), "-c", program)
    assert done.returncode == 2
    assert f"bigmem: {folder / 'j.json'}: cannot be written" in done.stderr


def test_a_device_is_written_to():
    done = command("--json", "/dev/stdout", "-c", "pass")
    assert json.loads(done.stdout)["minor_faults"] == 0


def test_an_output_of_the_program_is_added_to(tmp_path: Path):
    """The shell has sent it to a file, which must not take another's place."""
    with (tmp_path / "out").open("w") as out:
        words = ("--json", "/dev/stdout", "-c", "print('printed')")
        command(*words, capture_output=False, stdout=out, stderr=subprocess.DEVNULL)
    printed, figures = (tmp_path / "out").read_text().split("\n", 1)
    assert printed == "printed"
    assert json.loads(figures)["minor_faults"] == 0


# Not print: the signal may come before that has returned, and it cannot be called within itself.
# Nor one long sleep: a signal just before that begins would be handled when it ends.
READY = """
import os, time
os.write(1, b"ready\\n")
for _ in range(6000):
    time.sleep(0.01)
"""
CATCHES = f"""
import os, signal
def stop(number, frame):
    os.write(1, f"caught {{int(number)}}\\n".encode())
    raise SystemExit(3)
for number in (2, 15, 1, 10):
    signal.signal(number, stop)
{READY}
"""


def ended(program: str, number: int) -> tuple[int, str]:
    """The end of a program in `_child`'s care after a signal to that, and what it printed."""
    code = (
        "import os, sys; from bigmem.cli import _child; ended = _child.run("
        "[sys.executable, '-c', sys.argv[1]], os.environ); sys.exit(_child.end_alike(ended.status))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    return process.returncode, out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_passed_on(number):
    assert ended(READY, number) == (-number, "")
    assert ended(CATCHES, number) == (3, f"caught {int(number)}\n")


def test_a_key_of_the_terminal_reaches_the_program_once():
    """The terminal sends it to both; a second one would break into what follows the first."""
    program = """
import time
try:
    print("ready", flush=True)
    for _ in range(6000):
        time.sleep(0.01)
except KeyboardInterrupt:
    time.sleep(0.3)
    print("calm", flush=True)
"""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-m", "bigmem", "profile", "-c", program])
    seen, pressed = b"", False
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            seen += os.read(terminal, 1000)
        except OSError:  # so a terminal tells that nobody is left
            break
        if not pressed and b"ready" in seen:
            os.write(terminal, b"\x03")
            pressed = True
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert b"calm" in seen
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_program_that_cannot_be_started():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(FileNotFoundError):
        _child.run(["/nowhere/python"], os.environ)
    assert signal.getsignal(signal.SIGINT) is before
