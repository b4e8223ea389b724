"""Outputs appear whole or not at all, whatever stops the command."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from prover.errors import UnwritableOutput
from prover.outputs import whole_files


def test_files_appear_when_the_block_succeeds(folder):
    one, two = folder / "one", folder / "two"
    two.write_text("earlier")
    with whole_files(one, two) as (first, second):
        first.write(b"1")
        second.write(b"2")
        assert not one.exists()
        assert two.read_text() == "earlier"
    assert (one.read_text(), two.read_text()) == ("1", "2")
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit, GeneratorExit])
def test_nothing_appears_when_the_block_fails(folder, error):
    one, two = folder / "one", folder / "two"
    two.write_text("earlier")

    def write_and_fail():
        with whole_files(one, two) as (first, _):
            first.write(b"1" * 100_000)
            raise error

    with pytest.raises(error):
        write_and_fail()
    assert two.read_text() == "earlier"
    assert [path.name for path in folder.iterdir()] == ["two"]


def test_none_appears_when_the_last_cannot(folder):
    one, two = folder / "one", folder / "two"
    with pytest.raises(UnwritableOutput):
        with whole_files(one, two):
            two.mkdir()  # after the checks, before the renaming
    assert [path.name for path in folder.iterdir()] == ["two"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_two_renamings_waits_for_the_second(folder, monkeypatch, number):
    class Signalled(BaseException):
        pass

    def handler(*_):
        raise Signalled

    replace = Path.replace

    def replace_and_signal(self, target):
        replace(self, target)
        signal.raise_signal(number)

    monkeypatch.setattr(Path, "replace", replace_and_signal)
    earlier = signal.signal(number, handler)
    try:
        with pytest.raises(Signalled):
            with whole_files(folder / "one", folder / "two"):
                pass
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, earlier)
    assert sorted(path.name for path in folder.iterdir()) == ["one", "two"]


def test_permissions_follow_the_umask(folder):
    old = os.umask(0o027)
    try:
        with whole_files(folder / "one") as (file,):
            file.write(b"1")
    finally:
        os.umask(old)
    assert (folder / "one").stat().st_mode & 0o777 == 0o640


def test_links_are_followed(folder):
    target, link = folder / "target", folder / "link"
    link.symlink_to(target)
    with whole_files(link) as (file,):
        file.write(b"1")
    assert link.is_symlink()
    assert target.read_text() == "1"


def test_impossible_outputs(multiplier, cli, folder, refused, tmp_path):
    good = folder / "proof.json"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = multiplier.key.read_bytes()
    for proof, public, message in [
        (good, tmp_path / "missing" / "public.json", "folder does not exist"),
        (tmp_path / "missing" / "proof.json", good, "folder does not exist"),
        (good, tmp_path, "is a directory"),
        (good, pipe, "no regular file"),
        (good, "/dev/null", "no regular file"),
        (good, good, "two outputs"),
        (multiplier.key, good, "is an input"),
        (good, multiplier.witness, "is an input"),
        (good, folder / ("x" * 300), "name too long"),
        (good, "/proc/public.json", "cannot be written"),
    ]:
        line = refused(cli("prove", multiplier.key, multiplier.witness, proof, public), folder)
        assert message in line
    assert multiplier.key.read_bytes() == before


def test_a_name_with_a_newline_stays_one_line(tmp_path, cli, refused):
    assert r"a\nb.zkey" in refused(cli("info", tmp_path / "a\nb.zkey"))


@contextmanager
def unprivileged():
    """Root may read and write everything: become nobody for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def public_folder():
    """A folder that nobody can enter, unlike those of tmp_path."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_no_permission(multiplier, public_folder, prove, cli, refused, tmp_path):
    assert prove(multiplier.key, multiplier.witness).code == 0  # everything is imported now
    key, secret = public_folder / "circuit.zkey", public_folder / "witness.wtns"
    shutil.copy(multiplier.key, key)
    shutil.copy(multiplier.witness, secret)
    key.chmod(0o644)
    for mode, message in ((0o000, "permission denied"), (0o644, "no permission for its folder")):
        secret.chmod(mode)
        public_folder.chmod(0o555)
        proof, public = public_folder / "proof.json", public_folder / "public.json"
        with unprivileged():
            outcome = cli("prove", key, secret, proof, public)
        public_folder.chmod(0o755)
        assert message in refused(outcome)
        assert sorted(p.name for p in public_folder.iterdir()) == [key.name, secret.name]


def command(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "prover", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def heed_signals():
    """Undo what a shell does to a job in the background, or nohup to all: they ignore some."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def test_a_full_disk_leaves_nothing(multiplier, folder):
    # A limit on file sizes stands for the full disk: the write fails in the same place.
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    earlier = folder / "proof.json"
    earlier.write_text("earlier")
    process = command(
        "prove", multiplier.key, multiplier.witness, earlier, folder / "public.json",
        preexec_fn=limit,
    )  # fmt: skip
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert out == ""
    (line,) = err.splitlines()
    assert "cannot be written" in line
    assert "file too large" in line
    assert [path.name for path in folder.iterdir()] == ["proof.json"]
    assert earlier.read_text() == "earlier"


@pytest.mark.parametrize(
    ("number", "mode"),
    [
        (signal.SIGINT, "normal"),
        (signal.SIGINT, "seed"),
        (signal.SIGTERM, "normal"),
        (signal.SIGHUP, "seed"),
    ],
)
def test_an_interrupt_is_one_line_and_leaves_no_part(multiplier, folder, number, mode):
    process = command(
        "batch", multiplier.key, multiplier.witness, "--repeat", 1_000_000, "-o", folder,
        "--mode", mode, preexec_fn=heed_signals,
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(5):
        assert process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    (line,) = err.splitlines()
    assert line in ("prover: interrupted", "prover: stopped")
    names = {path.name for path in folder.iterdir()}
    assert not [name for name in names if name.endswith(".tmp")]
    proofs = {name.removesuffix(".proof.json") for name in names if name.endswith(".proof.json")}
    publics = {name.removesuffix(".public.json") for name in names if name.endswith(".public.json")}
    assert proofs == publics
    assert len(proofs) >= 5
    assert 2 * len(proofs) == len(names)


def test_a_closed_pipe_is_no_traceback(multiplier, folder):
    process = command("batch", multiplier.key, multiplier.witness, "--repeat", 200, "-o", folder)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    (line,) = process.stderr.read().splitlines()
    assert "cut off" in line
    assert process.wait(60) == 2


def test_no_core_would_hold_the_witness(multiplier, folder):
    code = (
        "import resource, sys; from prover.cli import main; code = main(sys.argv[1:]); "
        "print(code, *resource.getrlimit(resource.RLIMIT_CORE))"
    )
    words = ["prove", multiplier.key, multiplier.witness, folder / "p.json", folder / "q.json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True
    )
    code, soft, hard = map(int, done.stdout.split())
    # 1 is what stops cores that are piped to a program too; no core file fits into it.
    assert (code, soft) == (0, 0 if hard == 0 else 1)
