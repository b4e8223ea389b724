"""Replays: what is in a log comes out again, on any allocator, in both measures."""

import gzip
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bigmem
from bench import machine, replay, replay_record, replay_report
from bench.core.contenders import Contender
from bench.replay_log import Log, Operation, load
from bench.replay_run import Replay, measure

MIB = 1 << 20
COMMITTED = sorted(replay.LOGS.glob("*.json.gz"))


def traced(path: Path, **options: Any) -> bigmem.Traced:
    pages = bigmem.AnonymousPages(huge="never")
    return bigmem.Traced(bigmem.MappedAllocator(pages=pages), path, touched=True, **options)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Of 4 MiB half touched, 2 MiB zeroed in another thread, 1 MiB never released."""
    path = tmp_path / "log.json"
    with traced(path) as watched:
        first = watched.allocate(4 * MIB)
        with bigmem.layer("release"), bigmem.layer("allocate"):  # names like those of events
            pass
        memoryview(first)[: 2 * MIB] = bytes(2 * MIB)
        made: list[bigmem.Block] = []
        thread = threading.Thread(
            target=lambda: made.append(watched.allocate(2 * MIB, zeroed=True))
        )
        thread.start()
        thread.join()
        kept = watched.allocate(MIB)
        del first
        made.clear()
    del kept
    return path


def test_a_log_is_understood(log: Path) -> None:
    found = load(log)
    assert found.threads == 2
    assert [
        (one.thread, one.block, one.is_release, one.nbytes // MIB, one.touched // MIB, one.zeroed)
        for one in found.operations
    ] == [
        (0, 0, False, 4, 2, False),
        (1, 1, False, 2, 0, True),
        (0, 2, False, 1, 1, False),
        (0, 0, True, 4, 2, False),
        (0, 1, True, 2, 0, True),
    ]
    times = [one.at for one in found.operations]
    assert times[0] == 0
    assert times == sorted(times)
    assert found.facts == {
        "allocations": 3,
        "releases": 2,
        "threads": 2,
        "bytes": 7 * MIB,
        "touched": 3 * MIB,
        "smallest": MIB,
        "peak": 7 * MIB,
        "peak_touched": 3 * MIB,
        "touched_at_end": MIB,
        "seconds": times[-1],
    }


def test_a_range_that_is_used_again_is_another_block(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    with bigmem.Traced(bigmem.ArenaAllocator(), path) as watched:
        addresses = set()
        for number in range(5):
            addresses.add(watched.allocate(MIB - number).address)
    assert len(addresses) == 1
    operations = load(path).operations
    assert [MIB - one.nbytes for one in operations] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [one.block for one in operations] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_logs_of_the_first_version_are_taken_to_be_touched_whole(log: Path) -> None:
    text = log.read_text().replace(',"version":2', "").replace(',"zeroed":true', "")
    lines = [line for line in text.splitlines() if '"touched"' not in line]
    log.write_text("\n".join(lines))
    found = load(log)
    assert {one.touched == one.nbytes for one in found.operations} == {True}
    assert not any(one.zeroed for one in found.operations)


def lacking(log: Path, text: str) -> str:
    return "\n".join(line for line in log.read_text().splitlines() if text not in line)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda log: log.read_text().replace('"version":2', '"version":3'), "newer format"),
        (lambda log: log.read_text().replace('"dropped":0', '"dropped":7'), "lacks 7 events"),
        (lambda log: log.read_text().replace('"nbytes"', '"size"'), "an event lacks 'nbytes'"),
        (lambda log: log.read_text().replace('"args":{', '"args":7,"other":{'), "is damaged"),
        (lambda log: log.read_text().replace('"nbytes":', '"nbytes":-'), "no number of bytes"),
        (lambda log: log.read_text().replace('"dur":', '"dur":"?","other":'), "of the wrong kind"),
        (lambda log: re.sub(r'"dur":[\d.]+', '"dur":-20', log.read_text()), "-20 is no time"),
        (lambda log: re.sub(r'"dur":[\d.]+', '"dur":NaN', log.read_text()), "nan is no time"),
        (lambda log: re.sub(r'"ts":[\d.]+', '"ts":Infinity', log.read_text()), "inf is no time"),
        (lambda log: re.sub(r'"ts":[\d.]+', '"ts":-1', log.read_text()), "-1 is no time"),
        (lambda log: lacking(log, "allocate"), "lacks the allocation of the block at 0x"),
        (lambda log: lacking(lacking_file(log, "allocate"), "release"), "no allocation in it"),
        (lambda _: "hello", "is no log"),
    ],
)
def test_a_log_that_cannot_be_replayed_is_refused(log: Path, change: Any, told: str) -> None:
    log.write_text(change(log))
    with pytest.raises(bigmem.BigmemError, match=told) as refusal:
        load(log)
    assert str(log) in str(refusal.value)


def test_a_log_without_a_release_is_refused(tmp_path: Path) -> None:
    """Where the range is used again, which shows it: the block is not live until the end."""
    path = tmp_path / "log.json"
    with bigmem.Traced(bigmem.ArenaAllocator(), path) as watched:
        address = watched.allocate(MIB).address
        assert watched.allocate(MIB).address == address
    lines = path.read_text().splitlines()
    lines.remove(next(line for line in lines if '"release"' in line))
    path.write_text("\n".join(lines))
    with pytest.raises(bigmem.BigmemError, match=f"lacks the release of the block at {address:#x}"):
        load(path)


def lacking_file(log: Path, text: str) -> Path:
    log.write_text(lacking(log, text))
    return log


@pytest.mark.parametrize("name", ["recycle", "mapped"])
def test_a_replay_is_served_by_the_allocator(log: Path, name: str) -> None:
    made: list[bigmem.Allocator] = []

    class Kept(Contender):
        def make(self) -> bigmem.Allocator | None:
            made.append(bigmem.make(name))
            return made[0]

    try:
        found = measure(load(log), Kept(name, name), 0)
    finally:
        bigmem.uninstall()
    stats = made[0].stats()
    assert found["served"] == stats.allocations >= 3
    assert stats.peak_live >= 7 * MIB
    assert found["faults"] >= 1
    assert 0 < found["allocate_s"] + found["touch_s"] + found["release_s"] <= 2 * found["wall_s"]


@pytest.mark.parametrize("threads", [1, 4])
def test_what_is_touched_is_what_the_program_touched(
    threads: int,
) -> None:
    size = 64 * 4096
    operations = []
    for block in range(8):
        both = [(block, False), (block, True)]
        operations += [
            Operation(
                at=0.0, thread=(block + is_release) % threads, block=number,
                is_release=is_release, nbytes=size, touched=block * 4096 + 1, zeroed=True,
            )
            for number, is_release in both
        ]  # fmt: skip
    touched = []

    class Counting(Replay):
        def _release(self, operation: Operation, spent: dict[str, float]) -> None:
            with self._changed:
                self._changed.wait_for(lambda: operation.block in self._arrays)
            touched.append((operation.block, int(self._arrays[operation.block].sum())))
            super()._release(operation, spent)

    replayed = Counting(Log(tuple(operations), threads), pace=0)
    replayed.run()
    assert sorted(touched) == [(block, block + 1) for block in range(8)]
    assert replayed._arrays == {}
    assert all(seconds > 0 for seconds in replayed.seconds.values())


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.randoms())
def test_operations_begin_in_their_order_on_their_threads(owners: list[int], random: Any) -> None:
    threads = max(owners) + 1
    operations = tuple(
        Operation(0.0, thread, block, False, 64, 64, False) for block, thread in enumerate(owners)
    )
    begun: list[tuple[int, int]] = []

    class Noting(Replay):
        def _take_turn(self, number: int, operation: Operation) -> bool:
            with self._changed:
                self._changed.wait_for(lambda: self._next == number)
                begun.append((number, threading.get_ident()))
            return super()._take_turn(number, operation)

    Noting(Log(operations, threads), pace=0).run()
    assert [number for number, _ in begun] == list(range(len(owners)))
    for thread in range(threads):
        idents = {ident for number, ident in begun if owners[number] == thread}
        assert len(idents) <= 1
        assert (threading.get_ident() in idents) == (bool(idents) and thread == 0)


def test_a_thread_that_fails_ends_the_replay() -> None:
    huge = bigmem.osmem.physical_bytes() * 64
    operations = (
        Operation(0.0, 1, 0, False, huge, 0, False),
        Operation(0.0, 0, 0, True, huge, 0, False),
    )
    with pytest.raises(MemoryError):
        Replay(Log(operations, 2), pace=0).run()


def test_the_pace_is_the_programs() -> None:
    operations = tuple(Operation(0.1 * n, 0, n, False, 64, 64, False) for n in range(3))
    for pace, least in ((1.0, 0.2), (0.5, 0.1)):
        begin = time.monotonic()
        Replay(Log(operations, 1), pace).run()
        assert time.monotonic() - begin >= least


def test_the_mean_is_over_time() -> None:
    found = {"begin": 10.0, "end": 20.0, "before_bytes": 100, "end_bytes": 0}
    # Up at once, eight seconds there, down at once; what is outside does not count.
    samples = [(9.0, 10**9), (10.001, 1100), (18.0, 1100), (18.001, 100), (21.0, 10**9)]
    assert replay.mean(found, samples) == pytest.approx(800, rel=0.01)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The JSON and the Markdown of a short comparison, whose libraries are nowhere."""
    folder = tmp_path_factory.mktemp("replay")
    path = folder / "program.json"
    with traced(path) as watched:
        for _ in range(3):
            block = watched.allocate(8 * MIB)
            memoryview(block)[:] = bytes(8 * MIB)
            del block
    (folder / "program.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    subprocess.run(
        [sys.executable, "-m", "bench.replay", str(folder / "program.json.gz"), "--rounds", "1",
         "--allocator", "glibc", "glibc tuned", "jemalloc", "mapped", "recycle", "--pace", "0",
         "--json", str(folder / "r.json"), "--markdown", str(folder / "r.md")],
        check=True,
        capture_output=True,
        timeout=280,
    )  # fmt: skip
    return json.loads((folder / "r.json").read_text()), (folder / "r.md").read_text()


def test_every_allocator_is_measured_in_both_regimes(written: tuple[dict[str, Any], str]) -> None:
    content, _ = written
    (found,) = content["logs"].values()
    assert list(found["regimes"]) == list(machine.REGIMES)
    for results in found["regimes"].values():
        assert list(results) == ["glibc", "glibc tuned", "jemalloc", "mapped", "recycle"]
        for name, one in results.items():
            if "absent" in one:
                assert (name, one["absent"]) == (
                    "jemalloc",
                    "not installed (apt install libjemalloc2)",
                )
                continue
            assert one["peak_bytes"] >= 7 * MIB, name
            assert one["mean_bytes"] < one["peak_bytes"]
    small = found["regimes"]["4 KiB"]
    pages = 8 * MIB // 4096
    assert small["mapped"]["faults"] >= 3 * pages
    assert small["glibc"]["faults"] >= pages
    assert pages <= small["recycle"]["faults"] < 2 * pages
    assert small["recycle"]["end_bytes"] >= 7 * MIB > 2 * MIB > small["mapped"]["end_bytes"]


def test_the_tables_hold_every_allocator(written: tuple[dict[str, Any], str]) -> None:
    content, page = written
    assert page == replay_report.page(content)
    assert page.startswith("### program\n")
    for regime in machine.REGIMES:
        table = page.split(f"**{regime} pages**")[1].split("**")[0].splitlines()
        rows = [line for line in table if line.startswith("| ") and not line.startswith("|  |")]
        assert [row.split(" | ")[0][2:] for row in rows] == [
            "glibc", "glibc tuned", "jemalloc", "mapped", "recycle",
        ]  # fmt: skip


def test_a_replay_that_fails_says_so_in_its_row(tmp_path: Path) -> None:
    results = {"glibc": {"failed": "MemoryError"}, "other": {"absent": "not installed"}}
    rows = replay_report.rows(results)
    assert [row[:2] for row in rows[1:]] == [["glibc", "MemoryError"], ["other", "not installed"]]
    assert {len(row) for row in rows} == {len(replay_report.HEADS)}
    assert replay.middle([{"wall_s": 1.0}, {"failed": "x"}]) == {"failed": "x"}
    missing = tmp_path / "missing.json"
    assert "cannot be read" in replay.replay(missing, "glibc", "huge", 0, None)["failed"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--allocator", "nonesuch"], "there is no allocator called 'nonesuch'"),
        (["missing.json"], "missing.json cannot be read: no such file"),
        (["--pace", "nan"], "'nan' is no number above 0"),
        (["--pace", "inf"], "'inf' is no number above 0"),
        (["--pace", "-1"], "'-1' is no number above 0"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(
    words: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # It would be a quarter of an hour.
    monkeypatch.setattr(machine, "warm_up", lambda _: pytest.fail("this is not refused"))
    monkeypatch.setattr(sys, "argv", ["replay", *words])
    with pytest.raises(SystemExit) as stopped:
        replay.main()
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_a_log_that_has_no_room_here_is_refused(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It would take all of the machine's memory.
    monkeypatch.setattr(machine, "warm_up", lambda _: pytest.fail("this is not refused"))
    needed = 2 * bigmem.osmem.physical_bytes()
    text = log.read_text().replace(f'"nbytes":{4 * MIB}', f'"nbytes":{needed}')
    log.write_text(text.replace(f'"touched":{2 * MIB}', f'"touched":{needed}'))
    with pytest.raises(bigmem.BigmemError, match="replay it on a larger one"):
        replay.compare([log], ["recycle"], 1, 0, None)


def test_logs_of_one_name_are_told_apart() -> None:
    paths = [Path(name) for name in ("a/log.json", "b/log.json.gz", "other.json", "a/log.json")]
    assert list(replay.titled(paths)) == ["a/log.json", "b/log.json.gz", "other"]
    assert list(replay.titled(paths).values()) == paths[:3]


def test_failures_are_told() -> None:
    runs = {"a": {"failed": "MemoryError"}, "b": {"absent": "not installed"}, "c": {"wall_s": 1.0}}
    results = {"log": {"log": {}, "regimes": {"huge": runs}}}
    assert replay.failures(results) == ["log (huge) on a"]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_the_committed_logs_can_be_replayed(path: Path) -> None:
    assert path.stat().st_size < 200_000
    facts = load(path).facts
    assert facts["allocations"] >= 50
    assert facts["touched"] <= facts["bytes"]
    assert facts["peak_touched"] > 0


def test_there_is_a_log_of_every_program() -> None:
    assert {path.name.partition(".")[0] for path in COMMITTED} == set(replay_record.PROGRAMS)


def test_a_program_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "program.py"
    script.write_text("import numpy as np\na = np.ones(1 << 18)\nb = a + a\ndel a\n")
    monkeypatch.setattr(replay_record, "words", lambda *_: [str(script)])
    target = tmp_path / "log.json.gz"
    replay_record.record("any", target)
    log = load(target)
    assert [(one.is_release, one.block) for one in log.operations][:3] == [
        (False, 0),
        (False, 1),
        (True, 0),
    ]
    assert {one.touched for one in log.operations} == {2 * MIB}
