"""The exit code holds whatever becomes of the streams; it is 2, never 1, for what is no verdict."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prover.cli import info, main


@pytest.fixture
def verify_words(multiplier):
    names = ("verification_key.json", "public.json", "proof.json")
    return ["verify", *(str(multiplier.folder / name) for name in names)]


def start(words, **options):
    # Buffered, as most people run it: what is written last is the hardest to get right.
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-m", "prover", *map(str, words)],
        **({"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
        timeout=60,
        check=False,
    )


def test_a_verdict_that_cannot_be_printed_is_no_false(verify_words):
    with Path("/dev/full").open("wb") as full:
        done = start(verify_words, stdout=full)
    assert done.returncode == 2
    assert done.stderr == b"prover: the output was cut off: no space left on device\n"


def test_a_verdict_without_an_output_is_the_exit_code(verify_words, tmp_path):
    assert start(verify_words, preexec_fn=lambda: os.close(1)).returncode == 0
    other = tmp_path / "public.json"
    other.write_text('["1"]')
    verify_words[2] = str(other)
    assert start(verify_words, preexec_fn=lambda: os.close(1)).returncode == 1


def test_a_refusal_that_cannot_be_told_is_no_false(verify_words):
    verify_words[1] = verify_words[2]
    with Path("/dev/full").open("wb") as full:
        done = start(verify_words, stderr=full)
    assert (done.returncode, done.stdout) == (2, b"")
    done = start(verify_words, preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_defect_is_no_false(multiplier, monkeypatch, capfd):
    def fail(arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(info, "run", fail)
    assert main(["info", str(multiplier.key)]) == 2
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["\u00e9", os.fsdecode(b"\xff"), "a\nb"])
def test_names_that_the_output_cannot_show(multiplier, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(multiplier.key.read_bytes())
    done = start(["info", path], env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.splitlines()) == 9
    done = start(["batch", path, multiplier.witness, "-o", tmp_path / name / "x"])
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_terminal_without_rich(multiplier, tmp_path):
    # The bars of setup and batch want a terminal and an extra; without it nothing is drawn.
    code = (
        "import sys; sys.modules['rich'] = None\n"
        "from prover.cli import main, setup; setup._LONG = 1; sys.exit(main(sys.argv[1:]))"
    )
    key = tmp_path / "a.zkey"
    for words in (
        ["setup", multiplier.r1cs, "-o", key, "--insecure-dev-key"],
        ["batch", key, multiplier.witness, "-o", tmp_path],
    ):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=60,
            check=False,
        )
        os.write(theirs, b"end")  # so that there is something to read
        told = b""
        while not told.endswith(b"end"):
            told += os.read(ours, 10_000)
        os.close(theirs)
        os.close(ours)
        assert done.returncode == 0, told
        assert b"Traceback" not in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_key_is_made_leaves_nothing(multiplier, folder, number):
    code = (
        "import sys, time\n"
        "from prover import setup; from prover.cli import main\n"
        "def write_key(file, *_, **__):\n"
        "    file.write(bytes(10**6)); print('writing', flush=True)\n"
        # Not one sleep: a signal just before that begins would be handled when it ends.
        "    for _ in range(6000): time.sleep(0.01)\n"
        "setup.write_key = write_key\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ["setup", multiplier.r1cs, "-o", folder / "a.zkey", "--insecure-dev-key"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        # A shell lets its jobs in the background ignore interrupts, and nohup hang-ups.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    assert list(folder.iterdir())
    time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err.splitlines()[-1] in ("prover: interrupted", "prover: stopped")
    assert list(folder.iterdir()) == []
