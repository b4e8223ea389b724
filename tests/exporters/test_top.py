"""`bigmem top` on real processes, and on whatever else there may be at a number."""

import contextlib
import json
import math
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from undisturbed import UNDISTURBED

import bigmem
import bigmem.cli.top
from bigmem.cli import main
from bigmem.exporters.page import NAME, SIZE, Page, Sampler
from bigmem.exporters.reader import Watched, content_of, is_snapshot
from bigmem.exporters.snapshot import snapshot
from bigmem.exporters.view import plain, rows

MIB = 1 << 20
Start = Callable[..., "subprocess.Popen[str]"]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["top", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    try:
        code = main(["top", *words])
    except SystemExit as stopped:
        code = int(str(stopped.code))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    return err


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_figures_of_another_process(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    child = start()
    with Watched(child.pid) as watched:
        until(lambda: watched.read()["total"]["warm"])
    found = json.loads(shown(capsys, "--json", str(child.pid)))
    assert found["process"] == child.pid
    assert found["allocators"]["recycle"]["live"] == 8 * MIB
    assert found["total"]["warm"] == 8 * MIB
    assert found["resident"] > 8 * MIB
    text = shown(capsys, str(child.pid))
    first, heads, row, total = text.splitlines()
    assert first.startswith(f"process {child.pid}: ")
    assert heads.split()[:3] == ["live", "pending", "reclaiming"]
    assert row.split()[:3] == ["recycle", "8", "MiB"]
    assert total.split()[0] == "all"


@pytest.mark.parametrize("end", ["of the process", "by Control-C"])
def test_on_a_terminal_it_watches_until_the_end(start: Start, end: str) -> None:
    child = start()
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "bigmem", "top", str(child.pid)]
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    with subprocess.Popen(words, stdout=theirs, stderr=theirs, env=environment) as top:
        os.close(theirs)
        text = b""
        while b"8 MiB" not in text:
            text += os.read(ours, 4096)
        child.kill() if end == "of the process" else top.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # nobody has the other end any more
            while more := os.read(ours, 4096):
                text += more
        assert top.wait(60) == 0
    os.close(ours)
    assert (f"process {child.pid} has ended".encode() in text) == (end == "of the process")
    assert b"interrupted" not in text
    assert b"Traceback" not in text


FORKS = """
import warnings
warnings.simplefilter("error")
hearing, telling = os.pipe()
child = os.fork()
if child == 0:
    os.write(telling, b"1")  # its page is there
    more = arena.allocate("16MiB")
    sys.stdin.read()
    os._exit(0)
os.read(hearing, 1)
print(child, flush=True)
"""


def test_a_forked_child_has_figures_of_its_own(start: Start) -> None:
    # From Python 3.12 on a fork beside a thread would warn.
    parent = start(FORKS, flags=("-W", "error"))
    child = int(parent.said)  # type: ignore[attr-defined]
    with Watched(parent.pid) as first, Watched(child) as second:
        until(lambda: second.read()["total"]["live"] == 24 * MIB)
        until(lambda: first.read()["total"]["live"] == 8 * MIB)  # from before it had both blocks
        seen = first.read()
        assert seen["process"] == parent.pid
        assert seen["total"]["live"] == 8 * MIB
        # The parent's thread is back: its figures go on.
        until(lambda: first.read()["monotonic"] > seen["monotonic"] + 0.5)
        parent.communicate("")
        assert parent.returncode == 0
        until(lambda: not second.alive())


def test_a_program_that_waits_for_its_threads_and_for_signals() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import bigmem\n" + UNDISTURBED],
        env={**os.environ, "BIGMEM_TOP": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "SIGUSR1 1\n", "")


def test_a_thread_that_is_refused_leaves_no_trace(
    page: "tuple[Page, int]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    sampler = Sampler(page[0])
    with monkeypatch.context() as patched:
        patched.setattr("_thread.start_new_thread", refused)
        sampler.start()
        sampler.stop()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert content_of(page[1]) is None
    sampler.start()
    until(sampler.sampled.is_set)
    sampler.stop()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    os.close(page[1])


def test_a_fork_that_python_does_not_know_of_is_not_taken_for_its_parent(start: Start) -> None:
    parent = start(
        """
        import ctypes
        child = ctypes.CDLL(None).fork()
        if child == 0:
            ctypes.CDLL(None).pause()
        print(child, flush=True)
        """
    )
    child = int(parent.said)  # type: ignore[attr-defined]
    try:
        with pytest.raises(bigmem.BigmemError, match=f"process {child} publishes nothing"):
            Watched(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_nothing_is_left_of_a_process_that_was_killed(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    child = start()
    with Watched(child.pid) as watched:
        child.kill()
        child.wait(60)
        assert not watched.wait(30)
        # What it told last can still be read, but by nobody new.
        assert watched.resident() is None
    assert "there is no process" in refusal(capsys, str(child.pid))


def test_a_process_whose_parent_does_not_ask_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert f"process {child.pid} has ended" in refusal(capsys, str(child.pid))


@pytest.mark.parametrize("when", ["begins", "ends"])
def test_control_c_is_no_failure_whenever_it_comes(
    page: "tuple[Page, int]", monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    live = pytest.importorskip("rich.live")
    monkeypatch.setattr(bigmem.cli.top, "can_draw", lambda _: True)
    name = {"begins": "__enter__", "ends": "__exit__"}[when]
    before = getattr(live.Live, name)

    def interrupted(self: object, *words: object) -> None:
        before(self, *words)
        raise KeyboardInterrupt

    monkeypatch.setattr(live.Live, name, interrupted)
    monkeypatch.setattr(Watched, "_find", lambda _: os.dup(page[1]))
    monkeypatch.setattr(Watched, "wait", lambda *_: False)
    Sampler(page[0]).sample()
    assert main(["top", str(os.getpid())]) == 0
    os.close(page[1])


@pytest.mark.parametrize("off", ["", "0"])
def test_a_process_that_did_not_opt_in_costs_nothing(
    start: Start, capsys: pytest.CaptureFixture[str], off: str
) -> None:
    child = start("print(len(sys._current_frames()), flush=True)", top=off)
    assert child.said == "1\n"  # type: ignore[attr-defined]
    told = refusal(capsys, str(child.pid))
    assert "publishes nothing: start it with BIGMEM_TOP=1" in told


def test_what_is_no_process_of_ours_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    free = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    for number in ("0", str(free), "9999999999"):
        assert f"there is no process {number}" in refusal(capsys, number)
    for word in ("", "abc", "-1", "1.5", "1 2", "٣", "9" * 30):
        assert "bigmem top: " in refusal(capsys, "--", word)
    assert "publishes nothing" in refusal(capsys, str(os.getpid()))


def test_another_users_process_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    assert "is another user's, or protected" in refusal(capsys, str(os.getpid()))


def test_a_program_may_close_all_files(start: Start) -> None:
    child = start(
        """
        import time
        os.closerange(3, 256)
        files = [os.memfd_create("theirs") for _ in range(9)]
        time.sleep(0.6)  # two snapshots and more
        print({os.fstat(file).st_size for file in files}, flush=True)
        """
    )
    assert child.said == "{0}\n"  # type: ignore[attr-defined]


def test_the_thread_opens_nothing_that_a_program_could_close(start: Start) -> None:
    child = start(
        """
        import threading, time
        opened = []
        def note(event, words):
            if event == "open" and threading.get_ident() != threading.main_thread().ident:
                opened.append(words[0])
        sys.addaudithook(note)
        time.sleep(0.6)  # two snapshots and more
        print(opened, flush=True)
        """
    )
    assert child.said == "[]\n"  # type: ignore[attr-defined]


def test_an_allocator_that_fails_is_told(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    child = start(
        """
        class Broken(bigmem.Allocator):
            def allocate(self, nbytes, *, alignment=64, zeroed=False):
                raise NotImplementedError
            def stats(self):
                raise RuntimeError("on\\nstrike")
        broken = [Broken(name="broken"), Broken(name="b" * 99)]
        """
    )
    with Watched(child.pid) as watched:
        until(lambda: len(watched.read()["errors"]) == 2)
    found = json.loads(shown(capsys, "--json", str(child.pid)))
    assert found["errors"] == dict.fromkeys(["broken", "b" * 64], "RuntimeError: on\nstrike")
    assert list(found["allocators"]) == ["recycle"]
    assert found["allocators"]["recycle"]["live"] == found["total"]["live"] == 8 * MIB
    _, _, row, total, first, second = shown(capsys, str(child.pid)).splitlines()
    assert row.split()[:3] == ["recycle", "8", "MiB"]
    assert total.split()[:3] == ["all", "8", "MiB"]
    assert "broken cannot tell its figures: RuntimeError: on\\nstrike" in {first, second}


def test_a_page_of_an_older_bigmem_can_be_read() -> None:
    old: dict[str, object] = {**snapshot()}
    del old["errors"]
    assert is_snapshot(old)
    for errors in ([], {"a": 1}, "x", None):
        assert not is_snapshot({**old, "errors": errors})


@pytest.fixture
def page() -> "tuple[Page, int]":
    file = os.memfd_create("test")
    return Page(file), file


def test_a_reader_in_the_middle_of_a_write_sees_a_whole_page(page: "tuple[Page, int]") -> None:
    writer, file = page
    texts = ["a" * 10, "b" * 20_000]
    done = threading.Event()

    def write() -> None:
        for number in range(400):
            writer.write({"text": texts[number % 2]})
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    while not done.is_set():
        if (content := content_of(file)) is not None:
            seen.add(content["text"])
    thread.join()
    assert seen <= set(texts)
    assert content_of(file) == {"text": texts[1]}
    os.close(file)


@settings(max_examples=200)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda data: b"%08x\n%s\n" % (zlib.crc32(data), data),
            st.sampled_from(
                [b"", b"[]", b"{}", b"nan", b"[" * 5000, b'{"total": 1}', b"\xff", b'{"time": NaN}']
            ),
        ),
    )
)
def test_no_page_ends_the_reader(data: bytes) -> None:
    file = os.memfd_create("test")
    os.write(file, data)
    content = content_of(file)
    os.close(file)
    assert content is None or not is_snapshot(content)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_passes_for_a_snapshot_can_be_shown(value: object) -> None:
    good = json.loads(json.dumps(snapshot()))
    for key in good:
        changed = {**good, key: value}
        if is_snapshot(changed):
            plain(changed)


def test_figures_that_are_no_numbers_or_beyond_any_are_refused() -> None:
    good: dict[str, object] = {**snapshot()}
    largest = int(sys.float_info.max)
    for fine in (0, -1, 0.5, 1 << 80, largest, -largest):
        assert is_snapshot({**good, "time": fine, "total": {"live": fine}})
        plain({**good, "time": fine, "total": {"live": fine}})  # type: ignore[typeddict-item]
    for bad in (10**400, -(10**400), largest + (largest >> 50), math.inf, math.nan, True, "1"):
        assert not is_snapshot({**good, "time": bad})
        assert not is_snapshot({**good, "total": {"live": bad}})


@pytest.mark.parametrize(
    ("hits", "made", "share"),
    [(1, 4, "25%"), (4, 4, "100%"), (0, 4, "0%"), (0, 0, ""), (1e308, 1e-320, ""), (5, 4, "")],
)
def test_a_share_is_of_all(hits: float, made: float, share: str) -> None:
    shown = snapshot()
    shown["total"] = {"live": 1, "allocations": made, "warm_hits": hits}
    assert rows(shown)[-1][-1] == share


def test_a_false_page_of_that_name_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigmem.exporters.reader._PATIENCE", 0.05)
    file = os.memfd_create(NAME)
    try:
        content = json.dumps({"process": os.getpid(), "time": "never"}).encode()
        os.write(file, b"%08x\n%s\n" % (zlib.crc32(content), content))
        assert "publishes what this bigmem cannot read" in refusal(capsys, str(os.getpid()))
        os.ftruncate(file, 0)
        assert "has written nothing yet" in refusal(capsys, str(os.getpid()))
    finally:
        os.close(file)


def test_a_process_that_has_no_snapshot_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = os.memfd_create(NAME)  # by which it is found
    try:
        Page(file).write({"process": os.getpid(), "error": "RuntimeError: on\nstrike"})
        told = f"process {os.getpid()} cannot tell its figures: RuntimeError: on\\nstrike"
        assert refusal(capsys, str(os.getpid())) == f"bigmem: {told}\n"
    finally:
        os.close(file)


def test_a_crowd_of_allocators_fits(page: "tuple[Page, int]") -> None:
    names = [letter * 200 for letter in ("\N{GRINNING FACE}", "\0", "\ud800")]
    crowd = [bigmem.SystemAllocator(name=f"{n} {names[n % 3]}") for n in range(200)]
    large = bigmem.ArenaAllocator(name="the largest")
    block = large.allocate(MIB)
    writer, file = page
    Sampler(writer).sample()
    content = content_of(file)
    assert content is not None
    assert is_snapshot(content)
    assert "the largest" in content["allocators"]
    assert len(content["allocators"]) < len(crowd)
    assert os.fstat(file).st_size == SIZE
    os.close(file)
    del block


def test_names_that_begin_alike_are_added_up(page: "tuple[Page, int]") -> None:
    alike = [bigmem.ArenaAllocator(name="test of names " + "n" * 64 + end) for end in "ab"]
    blocks = [arena.allocate(MIB) for arena in alike]
    writer, file = page
    Sampler(writer).sample()
    content = content_of(file)
    os.close(file)
    assert content is not None
    (found,) = [one for name, one in content["allocators"].items() if "test of names" in name]
    assert (found["live"], found["allocations"]) == (2 * MIB, 2)
    del blocks


def test_figures_that_cannot_be_written_are_told(
    page: "tuple[Page, int]", monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = {"allocators": {}, "total": {1, 2}, "errors": {}}
    monkeypatch.setattr("bigmem.exporters.page.held", lambda: odd)
    writer, file = page
    Sampler(writer).sample()
    content = content_of(file)
    os.close(file)
    assert content is not None
    assert "TypeError" in content["error"]


def test_an_old_page_says_so() -> None:
    old = snapshot()
    assert "figures of" not in plain(old)
    old["time"] -= 60
    assert "; figures of 60 s ago" in plain(old)


def test_the_view_in_process(capfd: pytest.CaptureFixture[str]) -> None:
    console = pytest.importorskip("rich.console")
    from bigmem.exporters.view import live_view

    class Broken(bigmem.SystemAllocator):
        def stats(self) -> bigmem.AllocatorStats:
            raise RuntimeError("on strike")

    keepers = [bigmem.SystemAllocator(name="seen"), Broken(name="broken")]
    with live_view(console.Console(force_terminal=True, width=160)):
        pass
    told = capfd.readouterr().out
    assert "seen" in told
    assert "broken cannot tell its figures: RuntimeError: on strike" in told
    del keepers
