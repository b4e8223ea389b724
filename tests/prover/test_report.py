"""Where the time of a run went: timers by layer, gaps and what is in them."""

import json
import threading
import time
from dataclasses import fields

import numpy as np
import pytest

import bigmem
from bigmem.layers import observe, unobserve
from prover.backends.cpu.backend import CpuBackend
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.pipeline import timers as timers_module
from prover.pipeline.engine import Engine
from prover.pipeline.report import LayerReport, Row, UnexplainedTime
from prover.pipeline.timers import Reading, Timers


class Clock:
    """What timers read, advanced by hand."""

    def __init__(self):
        self.now = Reading()

    def advance(self, wall, **parts):
        """Let time pass on a processor, ``parts`` of it spent as they say."""
        cpu = parts.pop("cpu_s", wall)
        self.now = self.now.plus(Reading(wall_s=wall, cpu_s=cpu, **parts))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timers_module, "_now", lambda: clock.now.wall_s)
    monkeypatch.setattr(timers_module, "_cpu", lambda: clock.now.cpu_s)
    monkeypatch.setattr(Timers, "_counts", lambda self: clock.now[2:])
    return clock


def report_of(body, *allocators):
    with Timers(*allocators) as timers, bigmem.layer("worker"), bigmem.layer("circuit"):
        body()
    return LayerReport.of(timers)


def row(report, *path):
    (found,) = (one for one in report.rows if one.path == ("worker", "circuit", *path))
    return found


def parts_of(row):
    return (
        *(row.map_s, row.release_s, row.fault_s, row.wait_s, row.copy_s, row.work_s),
        row.unexplained_s,
    )


def test_layers_inside_and_gaps(clock):
    def body():
        for _ in range(2):
            with bigmem.layer("sums"):
                clock.advance(1.0)
                with bigmem.layer("ntt"):
                    clock.advance(2.0)
                clock.advance(0.5)

    report = report_of(body)
    sums, ntt = row(report, "sums"), row(report, "sums", "ntt")
    assert (sums.calls, sums.outer_s, sums.inner_s, sums.gap_s) == (2, 7.0, 4.0, 3.0)
    assert (ntt.calls, ntt.outer_s, ntt.inner_s, ntt.gap_s) == (2, 4.0, 0.0, 4.0)
    assert (sums.unexplained_s, sums.work_s, ntt.unexplained_s, ntt.work_s) == (3.0, 0, 0, 4.0)
    assert report.unexplained_s == 3.0
    assert report.unexplained == pytest.approx(3 / 7)


def test_a_gap_is_what_is_known_of_it_and_a_rest(clock):
    def body():
        with bigmem.layer("proof"):
            with bigmem.layer("ntt"):
                pass
            clock.advance(16.0, cpu_s=15.0, kernel_s=7.0, map_s=1.0, release_s=2.0, faults=9)

    found = row(report_of(body), "proof")
    # Of the kernel's seven seconds three were the allocator's.
    assert parts_of(found) == (1.0, 2.0, 4.0, 1.0, 0, 0, 8.0)
    assert found.faults == 9


def test_what_an_allocator_waits_is_its_own(clock):
    """As for the lock of the address space, or for the driver to pin."""

    def body():
        with bigmem.layer("proof"):
            with bigmem.layer("ntt"):
                pass
            clock.advance(10.0, cpu_s=5.0, kernel_s=1.0, map_s=5.0)

    assert parts_of(row(report_of(body), "proof")) == (5.0, 0, 0, 1.0, 0, 0, 4.0)


def test_parts_never_exceed_their_layer(clock):
    def body():
        with bigmem.layer("proof"):
            with bigmem.layer("ntt"):
                pass
            # Another thread was in the allocator, too.
            clock.advance(2.0, cpu_s=0.5, kernel_s=0.25, map_s=1.5, release_s=3.0)

    assert parts_of(row(report_of(body), "proof")) == (1.5, 0.5, 0, 0, 0, 0, 0)


def test_layers_that_copy(clock):
    def body():
        for name in ("witness", "transfer", "ntt"):
            with bigmem.layer(name):
                clock.advance(3.0, cpu_s=1.0)

    report = report_of(body)
    assert parts_of(row(report, "witness")) == (0, 0, 0, 2.0, 1.0, 0, 0)
    assert row(report, "transfer").copy_s == 1.0
    assert (row(report, "ntt").copy_s, row(report, "ntt").work_s) == (0, 1.0)


def test_reading_is_in_no_layer(clock, monkeypatch):
    """The clock is read first where a layer stops, and last where one goes on."""

    def counts(timers):
        clock.advance(1.0)
        return clock.now[2:]

    def cpu():
        clock.advance(0.5, kernel_s=0.5)
        return clock.now.cpu_s

    monkeypatch.setattr(Timers, "_counts", counts)
    monkeypatch.setattr(timers_module, "_cpu", cpu)

    def body():
        clock.advance(4.0)
        with bigmem.layer("ntt"):
            clock.advance(8.0)

    report = report_of(body)
    # Of three layers, each begins and ends, with two readings.
    assert report.reading_s == 18.0
    assert (row(report, "ntt").outer_s, row(report).gap_s) == (8.0, 4.0)
    assert (row(report, "ntt").fault_s, row(report).fault_s) == (0.0, 0.0)
    assert (report.wall_s, report.between_s) == (30.0, 0.0)


def test_a_layer_may_begin_while_another_one_does(clock):
    """As in a destructor, or an observer."""

    def observer(span):
        if span.name == "proof":
            clock.advance(2.0)
            with bigmem.layer("told"):
                clock.advance(4.0)
            clock.advance(8.0)

    def body():
        with bigmem.layer("proof"):
            clock.advance(1.0)

    observe(observer)
    try:
        report = report_of(body)
    finally:
        unobserve(observer)
    assert (row(report, "proof").outer_s, row(report, "told").outer_s) == (1.0, 4.0)
    # From where that layer has ended on, what is around it goes on.
    assert (row(report).gap_s, report.reading_s) == (8.0, 2.0)


@pytest.mark.parametrize(("gap", "good"), [(0.9, True), (1.1, False)])
def test_more_than_a_part_unexplained_is_refused(clock, gap, good):
    def body():
        with bigmem.layer("proof"):
            with bigmem.layer("ntt"):
                clock.advance(100 - gap)
            clock.advance(gap)

    report = report_of(body)
    assert report.unexplained == pytest.approx(gap / 100)
    if good:
        report.check()
    else:
        with pytest.raises(UnexplainedTime) as told:
            report.check()
        assert str(told.value) == (
            "1.1% of the proofs' time is unexplained: 1100.0 ms of 100.000 s, above 1000.0 ms "
            "(1.0%, or 0.5 ms a proof and 1.5 a thread if that is more); the machine may be busy "
            "with something else"
        )
        report.check(most=0.02)
        report.check(noise_s=0.3)


def test_a_few_lines_of_python_are_noise(clock):
    def body():
        with bigmem.layer("proof"):
            with bigmem.layer("ntt"):
                clock.advance(0.001)
            clock.advance(0.0004)

    report = report_of(body)
    assert report.unexplained > 0.2
    report.check()
    assert "idle 0.0 ms, threads that begin and end 0.0 ms, unexplained 0.4 ms" in str(report)


@pytest.mark.parametrize(("lost", "good"), [(0.9, True), (1.1, False)])
def test_what_the_synthesis_leaves_unexplained_is_refused_too(clock, lost, good):
    """The proofs may wait for it, and waiting is explained."""
    with Timers() as timers:
        with bigmem.layer("worker"), bigmem.layer("circuit"), bigmem.layer("wait"):
            clock.advance(100.0)
        with bigmem.layer("ahead"), bigmem.layer("wait"):
            pass
    tree = timers.tree()
    tree.inside["ahead"].own = Reading(wall_s=lost, cpu_s=lost)
    timers.tree = lambda: tree
    report = LayerReport.of(timers)
    assert (report.unexplained_s, report.synthesis_unexplained_s) == (0.0, lost)
    assert report.as_json()["synthesis_unexplained_s"] == lost
    if good:
        report.check()
    else:
        with pytest.raises(UnexplainedTime, match=r"1\.1% of the synthesis's time is unexplained"):
            report.check()


@pytest.mark.parametrize(
    ("proofs", "lost_ms", "good"),
    [(1, 1.9, True), (1, 2.1, False), (10, 6.4, True), (10, 6.6, False)],
)
def test_a_thread_may_take_as_long_as_three_proofs_to_begin_and_end(clock, proofs, lost_ms, good):
    with Timers() as timers:
        with bigmem.layer("worker"):
            for _ in range(proofs):
                with bigmem.layer("circuit"), bigmem.layer("ntt"):
                    clock.advance(0.01)
        clock.advance(lost_ms / 1e3)
    report = LayerReport.of(timers)
    assert report.unexplained_s == pytest.approx(lost_ms / 1e3)
    if good:
        report.check()
    else:
        with pytest.raises(UnexplainedTime, match="of the proofs' time is unexplained"):
            report.check()


def test_release_and_faults_are_in_the_gap_in_which_they_happen():
    allocator = bigmem.MappedAllocator(pages=bigmem.AnonymousPages(huge="never"))
    size = 64 << 20

    def body():
        with bigmem.layer("proof"):
            array = bigmem.empty(size, np.uint8, allocator=allocator)
            with bigmem.layer("ntt"):
                array[::4096] = 1
            del array
            with bigmem.layer("write"):
                pass

    before = allocator.stats().release_seconds
    report = report_of(body, allocator, allocator)
    released = allocator.stats().release_seconds - before
    assert row(report, "proof").release_s == pytest.approx(released, rel=0.01)
    assert released > 0
    assert row(report, "proof", "ntt").faults >= size // 4096
    assert row(report, "proof").faults < size // 4096
    assert row(report, "proof", "write").release_s == 0


@pytest.mark.parametrize("name", ["system", "mapped", "recycle"])
def test_what_other_threads_allocate_and_release_is_in_no_gap(name):
    allocator = bigmem.make(name)

    def elsewhere():
        with bigmem.layer("ahead"):
            bigmem.zeros(16 << 20, np.uint8, allocator=allocator)

    def body():
        with bigmem.layer("proof"):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

    report = report_of(body, allocator)
    assert row(report, "proof").map_s == row(report, "proof").release_s == 0
    (ahead,) = (one for one in report.rows if one.path == ("ahead",))
    stats = allocator.stats()
    assert ahead.map_s == pytest.approx(stats.allocate_seconds, rel=0.01, abs=1e-6)
    assert ahead.release_s == pytest.approx(stats.release_seconds, rel=0.01, abs=1e-6)
    assert stats.allocate_seconds > 0


def test_only_the_threads_of_the_engine_count():
    def body():
        for name in ("elsewhere", "ahead"):
            thread = threading.Thread(target=bigmem.layer(name)(threading.get_ident))
            thread.start()
            thread.join()

    report = report_of(body)
    assert [one.path for one in report.rows] == [("worker",), ("worker", "circuit"), ("ahead",)]
    assert (report.workers, report.proofs) == (1, 1)


def test_timers_end():
    with Timers() as timers:
        pass
    with bigmem.layer("worker"):
        pass
    assert LayerReport.of(timers).rows == ()
    LayerReport.of(timers).check()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_of_the_engine(multiplier, workers):
    key = ProvingKey.open(multiplier.key)
    vectors, assignments = bigmem.make("mapped"), bigmem.make("recycle")
    engine = Engine(
        key,
        backends=[CpuBackend(1) for _ in range(workers)],
        vectors=vectors,
        assignments=assignments,
        mode="seed",
        release="return",
    )
    with Timers(vectors, assignments) as timers:
        engine.run(5, lambda _: Witness.open(multiplier.witness), lambda number, statement: None)
    report = LayerReport.of(timers, {"ntt": 0.25})
    assert (report.workers, report.proofs) == (workers, 5)
    assert row(report).calls == row(report, "proof", "prove", "sums").calls == 5
    for one in report.rows:
        inside = [o for o in report.rows if o.path[:-1] == one.path]
        assert one.inner_s == pytest.approx(sum(o.outer_s for o in inside), abs=1e-9)
    ntt = row(report, "proof", "prove", "sums", "NTT/MSM-H", "ntt")
    assert ntt.device_s == 0.25
    total = sum(one.outer_s for one in report.rows if one.path == ("worker",))
    beside = report.reading_s + report.idle_s + report.between_s
    assert total + beside == pytest.approx(workers * report.wall_s)
    assert (report.idle_s > 0) == (workers > 1)
    found = json.loads(json.dumps(report.as_json()))
    assert found["unexplained_s"] == report.unexplained_s
    lines = str(report).splitlines()
    assert len(lines) == len(report.rows) + 4


def test_the_table_tells_copies_work_and_what_is_unexplained_apart():
    def made(*path, **parts):
        zeros = dict.fromkeys((field.name for field in fields(Row)), 0.0)
        return Row(**{**zeros, "path": path, "calls": 1, "faults": 0, **parts})

    report = LayerReport(
        0.0, 0.0, 1, 1, 0.0, 0.0,
        (
            made("worker", unexplained_s=0.002),
            made("worker", "witness", copy_s=0.003),
            made("worker", "ntt", work_s=0.005),
        ),
    )  # fmt: skip
    head, *lines = str(report).splitlines()
    cells = []
    for line in lines[:3]:
        ends = {name: head.index(name) + len(name) for name in ("copy", "work", "unexplained")}
        cells.append([line[end - len(name) : end].strip() for name, end in ends.items()])
    assert cells == [["", "", "2.00"], ["3.00", "", ""], ["", "5.00", ""]]


def test_a_worker_with_nothing_left_to_do_waits(multiplier, clock):
    """As one of two does at the end of an odd number of proofs."""
    key = ProvingKey.open(multiplier.key)
    engine = Engine(key, backends=[CpuBackend(1) for _ in range(2)])
    both = threading.Barrier(2)

    def finish(number, statement):
        if number < 3:
            both.wait(60)  # each worker makes one
            return
        end = time.monotonic() + 60
        while not any(one.root.inside.keys() >= {"worker"} and not one.stack for one in threads()):
            assert time.monotonic() < end
            time.sleep(0.001)
        with bigmem.layer("write"):
            clock.advance(0.3)

    with Timers(bigmem.get_allocator()) as timers:

        def threads():
            return list(timers._threads.values())

        engine.run(3, lambda _: Witness.open(multiplier.witness), finish)
    report = LayerReport.of(timers)
    report.check()
    assert report.idle_s == pytest.approx(0.3)


@pytest.fixture
def batch(multiplier, cli, folder, tmp_path):
    """A batch with timings: what came of it, and its report."""

    def run():
        words = ("batch", multiplier.key, multiplier.witness, "-o", folder, "--timings")
        figures = tmp_path / "figures.json"
        outcome = cli(*words, "--mode", "seed", "--json", figures)
        assert len(list(folder.iterdir())) == 2
        return outcome, json.loads(figures.read_text())["report"]

    return run


def test_batch_prints_where_the_time_went(batch, monkeypatch):
    for name in ("unexplained_s", "synthesis_unexplained_s"):  # the machine may be busy
        monkeypatch.setattr(LayerReport, name, 0.0)
    outcome, report = batch()
    assert outcome.code == 0
    names = {row["path"][-1] for row in report["rows"]}
    assert {
        "split vectors", "prep MSM", "NTT/MSM-H", "batch addition", "tail MSMs", "B in G2",
        "epilogue", "before release", "release",
    } <= names  # fmt: skip
    assert all(name in outcome.err for name in names)
    assert report["unexplained"] == 0.0


def test_batch_fails_if_it_cannot_explain_its_time(batch, monkeypatch):
    monkeypatch.setattr(LayerReport, "unexplained_s", 60.0)
    outcome, _ = batch()
    assert outcome.code == 2
    line = outcome.err.splitlines()[-1]
    assert line.startswith("prover: ")
    assert "% of the proofs' time is unexplained: 60000.0 ms of" in line
