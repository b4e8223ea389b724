"""The command line of `bigmem` itself, and how it becomes a program."""

import os
import signal
import sys
from pathlib import Path

import pytest

import bigmem.registry
from bigmem.cli import _launch, main

COMMAND = str(Path(sys.executable).with_name("bigmem"))


def test_a_wrong_command_line_is_one_line(refused):
    assert "VERB" in refused()
    assert "nonesuch" in refused("nonesuch")
    assert refused("run").startswith("bigmem run: a program is missing: SCRIPT, -m MODULE")
    assert "a program is missing" in refused("run", "--allocator", "system")
    assert "no option --allocatr;" in refused("run", "--allocatr", "x", "a.py")
    # What may be its value is the program: only the option is called wrong.
    told = refused("run", "-i", "a.py")
    assert "no option -i; Python's own go before -m" in told
    assert "a.py" not in told
    assert "expected one argument" in refused("run", "--allocator")
    assert "expected one argument" in refused("run", "--allocator", "-m", "a")


def test_an_unknown_allocator_is_told_with_the_known(refused, monkeypatch):
    known = "deferred, dontneed, mapped, pinned, recycle, "  # and plug-ins that are installed
    told = refused("run", "--allocator", "a\nb", "a.py")
    assert told.startswith("bigmem: --allocator a\\nb: ")
    assert known in told
    monkeypatch.setenv("BIGMEM_ALLOCATOR", "nonesuch")
    monkeypatch.setattr("bigmem.registry._default", None)
    assert refused("run", "a.py").startswith("bigmem: the default allocator: there is no allocator")


def test_a_failing_plug_in_is_one_line(refused, monkeypatch):
    def fail():
        raise RuntimeError

    monkeypatch.setitem(bigmem.registry._BUILT_IN, "failing", fail)
    assert refused("run", "--allocator", "failing", "a") == (
        "bigmem: --allocator failing: RuntimeError\n"
    )


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], []),
        (["/bin/bigmem", "-O", "run"], []),
        (["-m", "bigmem", "-O"], []),
        (["-mbigmem", "run"], []),
        (["-OBm", "bigmem"], ["-OB"]),
        (["-O", "-c", "-B"], ["-O"]),
        (["-", "-O"], []),
        (["-u", "--", "-O"], ["-u"]),
        (["-X", "dev", "-Wm", "-W", "error", "-m", "a"], ["-X", "dev", "-Wm", "-W", "error"]),
        (["-BX", "utf8", "-BXm", "-m", "a"], ["-BX", "utf8", "-BXm"]),
        (["--check-hash-based-pycs", "never", "a"], ["--check-hash-based-pycs", "never"]),
    ],
)
def test_the_interpreters_own_options(programs, monkeypatch, words, options):
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    assert programs.started("a.py", "-B")[0] == [sys.executable, *options, "a.py", "-B"]


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["-O", "a.py", "-m"], ["a.py", "-m"]),
        (["-X", "dev", "-m", "a", "-O"], ["-m", "a", "-O"]),
        (["-OBma", "b"], ["-m", "a", "b"]),
        (["-cpass", "-c"], ["-c", "pass", "-c"]),
        (["-W", "error", "--", "-a.py"], ["-a.py"]),
        (["-", "-O"], ["-", "-O"]),
        (["-O"], []),
    ],
)
def test_the_program_that_an_interpreter_runs(words, program):
    assert _launch.split(words)[1] == program


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["a.py"], ["a.py"]),
        (["--allocator", "system", "a.py", "--allocator", "x"], ["a.py", "--allocator", "x"]),
        (["--allocator=system", "-m", "a", "--", "-h"], ["-m", "a", "--", "-h"]),
        (["--", "a.py", "--"], ["a.py", "--"]),
        (["--", "-m", "a"], ["-m", "a"]),
        (["--", "-a.py", "-h"], ["--", "-a.py", "-h"]),
        (["--", "-I", "a.py"], ["--", "-I", "a.py"]),
        (["-ca", "--help"], ["-ca", "--help"]),
        (["-", ""], ["-", ""]),
    ],
)
def test_where_a_programs_words_begin(programs, words, program):
    assert programs.started(*words)[0][1:] == program


def test_the_python_path_of_the_user_stays(programs):
    startup = str(_launch.STARTUP)
    for theirs, expected in (("", startup), ("a::b", f"{startup}:a::b"), (":", f"{startup}::")):
        environment = programs.started("a.py", env={"PYTHONPATH": theirs})[1]
        assert environment["PYTHONPATH"] == expected


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_options_that_keep_us_out_are_refused(programs, option):
    code = (
        "import site, sys; site.main()\n"  # which finds us, also where -S leaves it out
        "import bigmem.cli; sys.exit(bigmem.cli.main(sys.argv[1:]))"
    )
    words = [sys.executable, option, "-c", code, "run", "a.py"]
    told = "bigmem: python's options -I, -E and -S keep bigmem out of the program\n"
    assert programs.finish(programs.start(words)) == (2, "", told)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_becomes_the_program(programs, number):
    script = programs.write(
        "a.py",
        """
        import os, signal, sys, time
        import numpy
        print(os.getpid(), signal.getsignal(signal.SIGTERM), *sys.argv, input(), flush=True)
        for _ in range(6000):  # no pause, which a signal just before it would not end
            time.sleep(0.01)
        """,
    )
    process = programs.start([COMMAND, "run", script, "--allocator", "x"])
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("in\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{process.pid} 0 {script} --allocator x in\n"
    process.send_signal(number)
    code, _, err = programs.finish(process)
    assert code == -number
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)


def test_a_whole_run(programs):
    programs.write("package/__main__.py", "import sys; sys.exit(print(sys.flags, sys.argv[1:]))")
    python = [sys.executable, "-uOO", "-W", "error", "-X", "importtime"]
    plain, hooked = (
        programs.finish(programs.start([*python, *middle, "-m", "package", "x"]))
        for middle in ([], ["-m", "bigmem", "run", "--allocator", "mapped"])
    )
    assert hooked[:2] == plain[:2]
    assert plain.out.startswith("sys.flags")
    assert "import time:" in hooked.err


def test_an_exit_code(programs):
    words = [COMMAND, "run", "-c", "import sys; sys.exit(3)"]
    assert programs.finish(programs.start(words)) == (3, "", "")


def test_a_python_that_cannot_be_started(refused, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonesuch/python")
    told = "bigmem: cannot start /nonesuch/python: No such file or directory\n"
    assert refused("run", "a.py") == told


def test_the_process_default_survives_a_program_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "execve", refuse)
    assert main(["run", "program.py"]) == 2
    assert bigmem.zeros(10).sum() == 0
