"""The event log: what is in it, and that it survives whatever happens."""

import gzip
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bigmem
from bigmem.wrappers import Traced, traced

Run = Callable[..., str]


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]


def test_allocations_and_releases_are_logged_with_their_times(tmp_path: Path) -> None:
    watched = Traced(bigmem.SystemAllocator(), tmp_path / "log.json", name="mine")
    start = bigmem._core.Block(bytearray(1), allocator=watched).born
    first = watched.allocate(1000)
    second = watched.allocate(5000)
    first_address, second_address = first.address, second.address
    del first, second
    end = bigmem._core.Block(bytearray(1), allocator=watched).born
    watched.close()
    events = json.loads((tmp_path / "log.json").read_text())
    assert events == traced.read(tmp_path / "log.json") == watched.events()

    made, dropped = named(events, "allocate"), named(events, "release")
    for found in (made, dropped):
        assert [e["args"] for e in found] == [
            {"nbytes": 1000, "address": hex(first_address)},
            {"nbytes": 5000, "address": hex(second_address)},
        ]
        for event in found:
            assert (event["ph"], event["cat"]) == ("X", "mine")
            assert (event["pid"], event["tid"]) == (os.getpid(), threading.get_native_id())
            assert start * 1e6 - 1 <= event["ts"]
            assert event["dur"] >= 0
            assert event["ts"] + event["dur"] <= end * 1e6 + 1
    assert made[0]["ts"] + made[0]["dur"] <= made[1]["ts"] + 0.002
    counter = named(events, "mine live")
    assert [e["args"]["bytes"] for e in counter] == [1000, 6000, 5000, 0]
    assert {e["ph"] for e in counter} == {"C"}
    assert named(events, "close")[0]["args"] == {"dropped": 0}


def test_one_event_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    with Traced(bigmem.SystemAllocator(), path) as watched:
        for _ in range(10):
            watched.allocate(10)
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("[", "]")
    assert all(isinstance(json.loads(line.removesuffix(",")), dict) for line in lines[1:-1])
    assert path.stat().st_size < 10_000


def test_where_names_the_code_outside_bigmem() -> None:
    watched = Traced(bigmem.ArenaAllocator(), where=True)
    line = sys._getframe().f_lineno + 1
    array = bigmem.zeros(100, allocator=watched)
    event = named(watched.events(), "allocate")[0]
    assert event["args"]["where"] == f"{__file__}:{line}"
    del array


def test_names_of_any_kind_make_valid_json(tmp_path: Path) -> None:
    name = 'a "quoted" \\ name\n of ümläuts ' + "…" * 100
    with Traced(bigmem.SystemAllocator(), tmp_path / "log.json", name=name) as watched:
        watched.allocate(10)
    category = named(traced.read(tmp_path / "log.json"), "allocate")[0]["cat"]
    assert category.startswith('a "quoted" \\ name  of ümläuts ……')


def test_a_log_in_memory_and_an_open_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    for watched in (Traced(bigmem.SystemAllocator()), Traced(bigmem.SystemAllocator(), path)):
        for count in range(1, 4):
            watched.allocate(10)
            assert len(named(watched.events(), "allocate")) == count
    assert traced.read(path) == watched.events()


@pytest.mark.parametrize("release", [bigmem.Deferred(), bigmem.Recycle(), bigmem.Inline()])
@pytest.mark.parametrize("wrap", [False, True])
def test_reclaims_are_logged_by_whoever_does_them(
    release: "bigmem.Inline | bigmem.Deferred | bigmem.Recycle", wrap: bool
) -> None:
    arena = bigmem.ArenaAllocator(release=release)
    watched = Traced(bigmem.Limited(arena, "1GiB") if wrap else arena)
    for _ in range(3):
        bigmem.ones(1 << 20, allocator=watched)
    watched.flush()
    watched.trim()
    events = watched.events()
    reclaims = named(events, "reclaim")
    assert sum(e["args"]["nbytes"] for e in reclaims) == arena.stats().reclaimed >= 8 << 20
    assert all(e["dur"] > 0 for e in reclaims)
    waits = named(events, "wait")
    assert len(waits) == arena.stats().waits == 2
    assert sum(e["dur"] for e in waits) == pytest.approx(1e6 * arena.stats().wait_seconds, abs=0.1)
    if isinstance(release, bigmem.Inline):
        # The release lasts until the memory is back.
        for e, inner in zip(named(events, "release"), reclaims, strict=True):
            assert e["ts"] <= inner["ts"]
            assert inner["ts"] + inner["dur"] <= e["ts"] + e["dur"] + 0.002


def test_workers_write_the_log(run_python: Run, tmp_path: Path) -> None:
    run_python(
        """
        import sys, threading, time
        import bigmem
        arena = bigmem.ArenaAllocator(release=bigmem.Deferred())
        watched = bigmem.Traced(arena, sys.argv[1])
        for _ in range(20):
            bigmem.ones(1 << 18, allocator=watched)
        end = time.monotonic() + 20
        while arena.stats().pending or arena.stats().reclaiming:
            assert time.monotonic() < end
            time.sleep(0.01)
        watched.close()
        tids = {e["tid"] for e in watched.events() if e["name"] == "reclaim"}
        assert tids and threading.get_native_id() not in tids, tids
        """,
        str(tmp_path / "log.json"),
    )


def test_threads_share_a_log() -> None:
    watched = Traced(bigmem.ArenaAllocator())

    def work(number: int) -> None:
        for _ in range(500):
            watched.allocate(100 + number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = watched.events()
    for name in ("allocate", "release"):
        sizes = [e["args"]["nbytes"] for e in named(events, name)]
        assert [sizes.count(100 + number) for number in range(4)] == [500] * 4
    assert len({e["tid"] for e in named(events, "allocate")}) == 4


def test_a_full_log_counts_what_it_drops(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    watched = Traced(bigmem.SystemAllocator(), path, max_bytes="64KiB")
    assert path.stat().st_size == 64 << 10
    for _ in range(1000):
        watched.allocate(10)
    assert watched.dropped > 0
    watched.close()
    assert path.stat().st_size <= 64 << 10
    events = json.loads(path.read_text())
    logged = [e for e in events if e["ph"] in "XC"]
    assert len(logged) + watched.dropped == 4000
    assert events[-1]["args"] == {"dropped": watched.dropped}


def test_blocks_that_outlive_the_log_are_let_go(tmp_path: Path) -> None:
    system = bigmem.SystemAllocator()
    arena = bigmem.ArenaAllocator(release=bigmem.Deferred())
    for below in (system, arena):
        watched = Traced(below, tmp_path / "log.json")
        kept = [watched.allocate(5000) for _ in range(5)]
        watched.close()
        del kept[2:]
        del watched
        del kept
        assert below.flush(20)
        assert below.stats().live == 0
    assert len(named(traced.read(tmp_path / "log.json"), "allocate")) == 5


def test_a_killed_process_leaves_its_events(tmp_path: Path, run_python: Run) -> None:
    path = tmp_path / "log.json"
    run_python(
        """
        import os, signal, sys
        if os.fork() == 0:
            import bigmem
            watched = bigmem.Traced(bigmem.SystemAllocator(), sys.argv[1])
            blocks = [watched.allocate(10) for _ in range(500)]
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
        """,
        str(path),
    )
    assert path.stat().st_size == 64 << 20
    events = traced.read(path)
    assert len(named(events, "allocate")) == 500
    assert named(events, "close") == []


def test_exit_completes_the_log(tmp_path: Path, run_python: Run) -> None:
    path = tmp_path / "log.json"
    run_python(
        """
        import sys, bigmem
        watched = bigmem.Traced(bigmem.ArenaAllocator(), sys.argv[1])
        kept = [watched.allocate(100) for _ in range(10)]
        """,
        str(path),
    )
    events = json.loads(path.read_text())
    assert len(named(events, "allocate")) == 10
    assert len(named(events, "close")) == 1


def test_a_child_of_fork_leaves_its_parents_log_alone(tmp_path: Path, run_python: Run) -> None:
    path = tmp_path / "log.json"
    run_python(
        """
        import os, sys, warnings, bigmem
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        arena = bigmem.ArenaAllocator(release=bigmem.Recycle())
        watched = bigmem.Traced(arena, sys.argv[1])
        kept = watched.allocate(100)
        bigmem.ones(1 << 20, allocator=watched)  # warm: the child gives its copy up at once
        parent = os.getpid()
        if os.fork() == 0:
            for _ in range(10):
                bigmem.ones(1 << 20, allocator=watched)
            kept.release()
            watched.trim()
            sys.exit()  # with whatever is to be done at exit
        assert os.wait()[1] == 0
        assert os.stat(sys.argv[1]).st_size == 64 << 20
        last = watched.allocate(100)
        watched.close()
        events = watched.events()
        assert {e["pid"] for e in events} == {parent}
        assert len([e for e in events if e["name"] == "allocate"]) == 3
        assert len([e for e in events if e["name"] == "reclaim"]) == 0
        """,
        str(path),
    )
    assert len(named(json.loads(path.read_text()), "allocate")) == 3


def test_files_that_cannot_be_written_are_refused(tmp_path: Path, run_python: Run) -> None:
    with pytest.raises(IsADirectoryError):
        Traced(bigmem.SystemAllocator(), tmp_path)
    with pytest.raises(FileNotFoundError):
        Traced(bigmem.SystemAllocator(), tmp_path / "no" / "log.json")
    with pytest.raises(bigmem.BigmemError, match="at least 65536"):
        Traced(bigmem.SystemAllocator(), max_bytes=100)
    run_python(
        """
        import errno, os, resource, sys, bigmem
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            bigmem.Traced(bigmem.SystemAllocator(), sys.argv[1])
        except OSError as error:
            assert error.errno == errno.EFBIG and error.filename == sys.argv[1], error
            assert not os.path.exists(sys.argv[1])
        else:
            raise AssertionError("a file beyond the limit")
        """,
        str(tmp_path / "log.json"),
    )


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", "hello", "[\n12,\n", '[\n{"ph":"X",\n'):
        (tmp_path / "log.json").write_text(text)
        with pytest.raises(bigmem.BigmemError, match=r"log\.json is"):
            traced.read(tmp_path / "log.json")


LOG = "[\n" + "".join(
    json.dumps({"ph": "X", "name": f"e{k}", "ts": k + 0.125, "args": {"nbytes": k, "a": {}}})
    + ",\n"
    for k in range(8)
)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(2, len(LOG)), st.integers(1, 150)), max_size=4),
    st.integers(0, 50),
)
def test_bytes_that_were_never_written_cost_only_their_events(
    holes: list[tuple[int, int]], tail: int
) -> None:
    log = bytearray(LOG.encode())
    for begin, size in holes:
        end = min(begin + size, len(log))
        log[begin:end] = bytes(end - begin)
    log += bytes(tail)
    found = [event["name"] for event in traced._parse(bytes(log), "log")]
    # Whatever event is whole is found, in order, and nothing else.
    lines = LOG.split("\n")[1:-1]
    whole = [k for k, line in enumerate(lines) if line.removesuffix(",").encode() in log]
    assert found == [f"e{k}" for k in whole]


def test_what_is_no_plain_file_is_left_alone(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder, tmp_path / "nowhere" / "log"):
        with pytest.raises(OSError, match=path.name):
            Traced(bigmem.SystemAllocator(), path)
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [folder, pipe]


@pytest.mark.parametrize("there", ["the file", "no file"])
def test_a_link_leads_to_the_log(tmp_path: Path, there: str) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    if there == "the file":
        target.write_text("old")
    link.symlink_to(target)
    Traced(bigmem.SystemAllocator(), link).close()
    assert link.is_symlink()
    assert traced.read(target)


def test_a_log_that_cannot_be_made_leaves_the_old_file_alone(
    run_python: Run, tmp_path: Path
) -> None:
    old = tmp_path / "log.json"
    old.write_text("old")
    run_python(
        """
        import os, resource, signal, sys
        import bigmem
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            bigmem.Traced(bigmem.SystemAllocator(), sys.argv[1])
        except OSError:
            pass
        else:
            raise AssertionError("the log fits")
        """,
        str(old),
    )
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_a_second_log_in_the_same_place_leaves_the_first_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    first = Traced(bigmem.SystemAllocator(), path)
    second = Traced(bigmem.SystemAllocator(), path)
    second.allocate(1)
    second.close()
    first.allocate(2)
    first.allocate(3)
    assert len(named(first.events(), "allocate")) == 2
    first.close()
    assert [e["args"]["nbytes"] for e in named(traced.read(path), "allocate")] == [1]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_log_whose_descriptor_was_closed_touches_no_other_file(
    run_python: Run, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    run_python(
        """
        import os, sys
        import bigmem
        watched = bigmem.Traced(bigmem.SystemAllocator(), sys.argv[1])
        watched.allocate(1)
        # As a daemon does.
        os.closerange(3, 64)
        files = [open(sys.argv[2], "ab") for _ in range(20)]
        files[0].write(bytes(100_000))
        files[0].flush()
        watched.close()
        del watched
        assert os.fstat(files[0].fileno()).st_size == 100_000
        """,
        str(tmp_path / "log.json"),
        str(other),
    )
    assert other.stat().st_size == 100_000
    assert len(named(traced.read(tmp_path / "log.json"), "allocate")) == 1


def test_a_childs_own_log_names_its_own_thread(run_python: Run, tmp_path: Path) -> None:
    run_python(
        """
        import os, sys
        import bigmem
        bigmem.Traced(bigmem.SystemAllocator()).allocate(1)
        child = os.fork()
        if child == 0:
            watched = bigmem.Traced(bigmem.SystemAllocator())
            watched.allocate(1)
            event, = [e for e in watched.events() if e["name"] == "allocate"]
            os._exit(0 if event["tid"] == event["pid"] == os.getpid() else 1)
        assert os.waitpid(child, 0)[1] == 0
        """
    )


def test_the_log_tells_its_version_and_what_was_to_be_zero(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    with Traced(bigmem.ArenaAllocator(), path) as watched:
        watched.allocate(10, zeroed=True)
        watched.allocate(10)
    events = traced.read(path)
    assert events[0]["args"]["version"] == 2
    assert [e["args"].get("zeroed", False) for e in named(events, "allocate")] == [True, False]
    assert not any("touched" in e["args"] for e in named(events, "release"))


@pytest.mark.parametrize(
    ("nbytes", "begin", "end", "touched"),
    [
        (1 << 20, 0, 0, 0),
        (1 << 20, 0, 1, 4096),
        (1 << 20, 4095, 4097, 8192),
        (1 << 20, 0, 1 << 20, 1 << 20),
        (10_000, 9_999, 10_000, 4096),  # of the last page, all that the block could have
        (10_000, 0, 10_000, 10_000),
        (5, 0, 5, 5),
    ],
)
def test_what_was_touched_is_told_at_the_release(
    nbytes: int, begin: int, end: int, touched: int
) -> None:
    pages = bigmem.AnonymousPages(huge="never")
    watched = Traced(bigmem.MappedAllocator(pages=pages), touched=True)
    block = watched.allocate(nbytes)
    memoryview(block)[begin:end] = bytes(end - begin)
    del block
    (release,) = named(watched.events(), "release")
    assert release["args"]["touched"] == touched


def test_a_log_of_brackets_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.json"
    with Traced(bigmem.SystemAllocator(), path) as watched:
        watched.allocate(10)
    with path.open("ab") as log:
        log.write(b"[" * 200_000 + b"\n")
    loads = json.loads

    def short(text: bytes) -> object:
        assert len(text) < 1000  # Python's limit may be lifted, and then this ends the process
        return loads(text)

    monkeypatch.setattr(traced.json, "loads", short)
    with pytest.raises(bigmem.BigmemError, match=r"log\.json is damaged: b'\[+'$"):
        traced.read(path)


def test_a_compressed_log_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    with Traced(bigmem.SystemAllocator(), path) as watched:
        watched.allocate(10)
    packed = gzip.compress(path.read_bytes())
    (tmp_path / "log.json.gz").write_bytes(packed)
    assert traced.read(tmp_path / "log.json.gz") == traced.read(path)
    for damaged in (packed[:-9], packed[:20] + b"x" * 30 + packed[50:], packed[:2]):
        (tmp_path / "log.json.gz").write_bytes(damaged)
        with pytest.raises(bigmem.BigmemError, match=r"log\.json\.gz is damaged"):
            traced.read(tmp_path / "log.json.gz")
