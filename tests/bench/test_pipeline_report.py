"""What the comparison of the pipeline says of its runs, and that it can be stopped and goes on."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from bench import machine, pipeline_journal, pipeline_report
from bench.core.contenders import Contender
from bench.pipeline_cells import POLICIES, Cell, Policy, circuits_of, make_allocator
from bench.pipeline_inputs import PipelineError
from bench.pipeline_journal import Journal

SETTINGS = {"backend": "cpu", "curve": "bn128", "circuits": 2, "machine": machine.describe()}
INLINE, RECYCLE, EARLY = (Cell(5, "seed", "4 KiB", name) for name in ("inline", "recycle", "early"))


def run(wall: float, **more: Any) -> dict[str, Any]:
    zeros = dict.fromkeys(pipeline_report.FIGURES, 0.0)
    resident = [[0.0, 1 << 20], [0.1, 3 << 20]]
    return {
        **zeros, "wall_s": wall, "inner_s": 1.0, "resident": resident, "layers": {"ntt": wall / 2},
        "owners": {}, "budget_bytes": 3 << 20, "sitting": 1, **more,
    }  # fmt: skip


def summary(**runs: list[dict[str, Any]]) -> dict[str, Any]:
    by_cell = {
        Cell(5, "seed", "4 KiB", name): {(number, 1): one for number, one in enumerate(all)}
        for name, all in runs.items()
    }
    failed = [
        (cell, number, {"sitting": 1, **one})
        for cell, of in by_cell.items()
        for (number, _), one in of.items()
        if "error" in one
    ]
    return pipeline_report.summarize(SETTINGS, by_cell, {"jemalloc": "not installed here"}, failed)


def test_a_ratio_is_taken_where_both_were_run() -> None:
    """Whichever round was made first."""
    later = {(1, 1): run(1.8), (0, 1): run(0.9), (2, 1): run(9.0)}
    runs = {INLINE: {(0, 1): run(1.0), (1, 1): run(2.0), (2, 1): {"error": "no"}}, RECYCLE: later}
    recycle = pipeline_report.summarize(SETTINGS, runs, {})["cells"][1]
    assert (recycle["rounds"], recycle["walls_s"]) == ([0, 1], [0.9, 1.8])
    assert recycle["against"] == {"median": 0.9, "min": 0.9, "max": 0.9}


def test_curves_are_those_of_the_median_run() -> None:
    curves = [[[0.0, wall]] for wall in (3, 1, 2)]
    runs = [
        run(wall, resident=curve, budget_bytes=wall)
        for wall, curve in zip((3.0, 1.0, 2.0), curves, strict=True)
    ]
    (inline,) = summary(inline=runs)["cells"]
    assert (inline["resident"], inline["budget_bytes"]) == ([[0.0, 2]], 2.0)


def test_a_ratio_is_taken_in_each_round() -> None:
    results = summary(inline=[run(1.0), run(2.0), run(4.0)], recycle=[run(0.9), run(1.9), run(3.6)])
    inline, recycle = results["cells"]
    assert recycle["against"] == {"median": 0.9, "min": 0.9, "max": 0.95}
    assert inline["against"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert recycle["wall_s"] == {"median": 1.9, "min": 0.9, "max": 3.6}


@pytest.mark.parametrize(
    ("walls", "ending"),
    [
        ([0.5, 0.6, 0.7, 0.8, 0.89], "a gain, each of its runs beat all of inline's."),
        ([0.5, 0.5, 0.5, 0.5, 0.91], "no gain, its runs and inline's overlap."),
        ([0.5, 0.5, 0.5, 0.5], "too few runs to call it a gain."),
    ],
)
def test_a_gain_is_what_noise_would_not_bring_about(walls: list[float], ending: str) -> None:
    inline = [run(wall) for wall in (0.9, 1.0, 1.1, 1.2, 1.3)]
    results = summary(inline=inline, recycle=[run(wall) for wall in walls], early=inline)
    (sentence,) = pipeline_report.findings(results["cells"])
    assert sentence.startswith("4 KiB pages: the best is recycle, with 0.")
    assert sentence.endswith(ending)


def test_the_best_may_have_taken_longer() -> None:
    results = summary(inline=[run(1.0)] * 5, recycle=[run(1.4)] * 5)
    (sentence,) = pipeline_report.findings(results["cells"])
    assert sentence.endswith("no gain, each of its runs took longer than all of inline's.")


def test_all_that_gained_or_took_longer_are_named() -> None:
    walls = {"inline": 2.0, "detached": 1.5, "early": 1.4, "recycle": 1.0, "madvise": 2.2}
    runs = {name: [run(wall)] * 5 for name, wall in walls.items()}
    results = summary(**runs, explicit=[*[run(1.0)] * 4, run(2.1)], mimalloc=[run(1.2)] * 4,
                      glibc=[run(9.0)] * 4)  # fmt: skip
    assert pipeline_report.findings(results["cells"])[1:] == [
        "4 KiB pages: others that gained: detached (0.75), early (0.70).",
        "4 KiB pages: others that took longer: madvise (1.10).",
    ]


def test_what_pays_before_the_clock_starts_is_told_apart() -> None:
    walls = {"inline": 2.0, "recycle": 1.0, "pinned ahead": 0.5}
    results = summary(**{name: [run(wall)] * 5 for name, wall in walls.items()})
    assert pipeline_report.findings(results["cells"]) == [
        "4 KiB pages: the best is recycle, with 0.50 (0.50-0.50) of inline's time: a gain, each of "
        "its runs beat all of inline's.",
        "4 KiB pages: pinned ahead, with 0.25 (0.25-0.25) of inline's time: a gain, each of its "
        "runs beat all of inline's.",
    ]


def test_how_many_runs_there_were() -> None:
    page = pipeline_report.markdown(summary(inline=[run(1.0)] * 5, recycle=[run(1.0)] * 3))
    assert "runs of each: 3-5." in page
    page = pipeline_report.markdown(summary(inline=[run(1.0)] * 5, jemalloc=[]))
    assert "runs of each: 5." in page


def test_what_was_not_run_says_why() -> None:
    results = summary(
        inline=[run(1.0)], jemalloc=[run(1.0)], recycle=[], early=[{"error": "exit code 2"}]
    )
    page = pipeline_report.markdown(results)
    assert "| 4 KiB | jemalloc | not installed here | - |" in page
    assert "| 4 KiB | recycle | not run yet | - |" in page
    assert "| 4 KiB | early | failed | - |" in page
    assert results["failures"] == ["2^5 seed, early, 4 KiB pages, round 1: exit code 2"]
    assert "**failed** 2^5 seed, early" in page
    assert pipeline_report.verdict(results, interrupted=False) == 1


def test_what_may_be_held_is_told_beside_what_was() -> None:
    page = pipeline_report.markdown(summary(inline=[run(1.0, held_bytes=5 << 19)]))
    assert "**2 circuits of 2^5, seed mode, of which 3 MiB may be held**" in page
    assert "| 0 | 2 | 0.00 |" in page


def test_a_failed_run_counts_in_no_figure() -> None:
    good = summary(inline=[run(1.0)])
    assert pipeline_report.verdict(good, interrupted=False) == 0
    assert pipeline_report.verdict(good, interrupted=True) == 130
    bad = summary(inline=[run(1.0), run(9.0, error="2.0% of the time is unexplained")])
    assert bad["cells"][0]["wall_s"]["max"] == 1.0
    assert bad["failures"][0].endswith("round 2: 2.0% of the time is unexplained")
    assert pipeline_report.verdict(bad, interrupted=False) == 1
    assert pipeline_report.verdict(bad, interrupted=True) == 1


def test_what_failed_after_a_good_run_is_a_failure() -> None:
    """And what nobody asks for is told by nobody."""
    runs = {INLINE: {(0, 1): run(1.0), (0, 2): {"error": "late", "sitting": 2}}}
    failed = [
        (INLINE, 0, {"error": "late", "sitting": 2}),
        (EARLY, 0, {"error": "x", "sitting": 1}),
    ]
    results = pipeline_report.summarize(SETTINGS, runs, {}, failed)
    assert results["failures"] == ["2^5 seed, inline, 4 KiB pages, round 1: late"]
    assert results["made_again"] == []


def test_results_are_written_with_a_picture_a_question(tmp_path: Path) -> None:
    results = summary(inline=[run(1.0)], recycle=[run(0.9)], jemalloc=[])
    page = pipeline_report.write(results, tmp_path, "pipeline-cpu")
    assert {path.name for path in tmp_path.iterdir()} == {
        "pipeline-cpu.json", "pipeline-cpu.md",
        *(f"pipeline-cpu-{question}.png" for question in ("time", "tax", "resident")),
    }  # fmt: skip
    assert (tmp_path / "pipeline-cpu.md").read_text() == page
    assert imread(tmp_path / "pipeline-cpu-tax.png").shape[1] == 660  # of one regime, a panel
    assert (
        pipeline_report.markdown(json.loads((tmp_path / "pipeline-cpu.json").read_text())) == page
    )


class Clock:
    """A time of day that a test sets."""

    def __init__(self, now: float = 1e9) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def add(journal: Journal, *cells: Cell, number: int = 0, wall: float = 1.0) -> None:
    for cell in cells:
        journal.add(cell, number, run(wall), journal.clock())


def test_a_journal_goes_on_after_a_line_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with Journal(path, SETTINGS, clock=Clock()) as journal:
        add(journal, INLINE)
        add(journal, RECYCLE, wall=2.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])  # as if killed while it wrote
    with Journal(path, SETTINGS, clock=Clock()) as journal:
        assert journal.due([INLINE, RECYCLE], 0) == [RECYCLE]
        add(journal, RECYCLE, wall=2.0)
    assert path.read_bytes() == whole
    with Journal(path, SETTINGS) as journal:
        assert journal.runs(RECYCLE) == {(0, 1): run(2.0)}


@pytest.mark.parametrize(
    ("later", "boot", "sitting"),
    [(0.0, "one", 1), (599.0, "one", 1), (600.0, "one", 2), (-1.0, "one", 2), (5.0, "two", 2)],
)
def test_a_stopped_round_goes_on_beside_a_baseline_of_the_same_sitting(
    tmp_path: Path, later: float, boot: str, sitting: int
) -> None:
    """It is made again where the sitting is another, and no run that is complete is."""
    path = tmp_path / "runs.jsonl"
    huge = [replace(cell, regime="huge") for cell in (INLINE, RECYCLE)]
    normal = [replace(cell, mode="normal") for cell in (INLINE, RECYCLE)]
    cells = [RECYCLE, *huge, EARLY, INLINE, *normal]
    with Journal(path, SETTINGS, clock=Clock(), boot="one") as journal:
        add(journal, *cells)
        add(journal, *huge, EARLY, INLINE, *normal, number=1)
        assert journal.due(cells, 1) == [RECYCLE]
    with Journal(path, SETTINGS, clock=Clock(1e9 + later), boot=boot) as journal:
        assert journal.due(cells, 0) == []
        assert journal.due(cells, 1) == ([RECYCLE] if sitting == 1 else [RECYCLE, INLINE])
        assert journal.due([RECYCLE], 1) == [RECYCLE]  # what nothing is compared with
        assert journal.due([RECYCLE], 0) == []
        assert journal.due(cells, 2) == cells
        for cell in journal.due(cells, 1):
            assert journal.due(cells, 1)[0] == cell  # stopped in between, it goes on
            add(journal, cell, number=1, wall=2.0)
        assert journal.due(cells, 1) == []
        assert journal.runs(RECYCLE).keys() == {(0, 1), (1, sitting)}
        assert journal.runs(INLINE).keys() == {(0, 1), (1, 1), (1, sitting)}
        assert journal.runs(EARLY).keys() == {(0, 1), (1, 1)}


def test_the_start_of_the_machine_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot"
    monkeypatch.setattr(pipeline_journal, "_BOOT", boot)
    for name, sitting in (("one", 1), ("one", 1), ("two", 2)):
        boot.write_text(f"{name}\n")
        with Journal(tmp_path / "runs.jsonl", SETTINGS, clock=Clock()) as journal:
            add(journal, INLINE)
            assert max(journal.runs(INLINE)) == (0, sitting)


def test_a_process_that_pauses_sits_down_again(tmp_path: Path) -> None:
    """What counts is the time between the end of a run and the beginning of the next."""
    clock = Clock()
    with Journal(tmp_path / "runs.jsonl", SETTINGS, clock=clock) as journal:
        for pause, length in ((0, 5), (599, 10_000), (599, 5), (600, 5), (1, 5)):
            clock.now += pause
            began = clock.now
            clock.now += length
            journal.add(INLINE, 0, run(1.0), began)
        assert [sitting for _, sitting in journal.runs(INLINE)] == [1, 2]
        assert journal.sitting(clock.now) == 2


def test_what_always_fails_costs_later_sittings_a_baseline_at_most(tmp_path: Path) -> None:
    clock = Clock()
    cells = [RECYCLE, EARLY, INLINE]
    with Journal(tmp_path / "runs.jsonl", SETTINGS, clock=clock) as journal:
        for sitting in range(3):
            due = journal.due(cells, 0)
            assert due == ([RECYCLE, INLINE] if sitting else cells)
            for cell in due:
                outcome = {"error": "exit code 1"} if cell == RECYCLE else run(1.0)
                journal.add(cell, 0, outcome, clock())
            assert journal.due(cells, 0) == [RECYCLE]
            clock.now += 1e4


def test_a_baseline_that_always_fails_costs_later_sittings_itself(tmp_path: Path) -> None:
    clock = Clock()
    cells = [RECYCLE, EARLY, INLINE]
    with Journal(tmp_path / "runs.jsonl", SETTINGS, clock=clock) as journal:
        for sitting in range(3):
            due = journal.due(cells, 0)
            assert due == ([INLINE] if sitting else cells)
            for cell in due:
                outcome = {"error": "exit code 1"} if cell == INLINE else run(1.0)
                journal.add(cell, 0, outcome, clock())
            assert journal.due(cells, 0) == [INLINE]
            assert journal.lacking(cells, 0) == cells
            clock.now += 1e4
        add(journal, INLINE)
        assert journal.due(cells, 0) == [RECYCLE, EARLY]


def test_a_later_sitting_takes_no_comparison_away(tmp_path: Path) -> None:
    """Each policy stands beside the newest baseline that was run in the same sitting as it."""
    clock = Clock()
    with Journal(tmp_path / "runs.jsonl", SETTINGS, clock=clock) as journal:
        for number in range(5):
            add(journal, INLINE, number=number, wall=2.0)
            add(journal, EARLY, number=number, wall=1.0)
        clock.now += 1e4
        assert journal.due([INLINE, RECYCLE, EARLY], 0) == [INLINE, RECYCLE]
        for number in range(4):
            add(journal, INLINE, number=number, wall=0.9)
            add(journal, RECYCLE, number=number, wall=0.45)
        clock.now += 1e4
        add(journal, INLINE, wall=5.0)
        runs = {cell: journal.runs(cell) for cell in (INLINE, RECYCLE, EARLY)}
    inline, recycle, early = pipeline_report.summarize(SETTINGS, runs, {})["cells"]
    assert inline["walls_s"] == [5.0, 0.9, 0.9, 0.9, 2.0]
    assert inline["sittings"] == [3, 2, 2, 2, 1]
    assert (recycle["rounds"], recycle["sittings"]) == ([0, 1, 2, 3], [2] * 4)
    assert (early["rounds"], early["sittings"]) == ([0, 1, 2, 3, 4], [1] * 5)
    half = {"median": 0.5, "min": 0.5, "max": 0.5}
    assert recycle["against"] == early["against"] == half
    assert early["baseline_wall_s"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert pipeline_report.findings([inline, recycle, early]) == [
        "4 KiB pages: the best is recycle, with 0.50 (0.50-0.50) of inline's time; too few runs to "
        "call it a gain.",
        "4 KiB pages: others that gained: early (0.50).",
    ]


def test_a_policy_alone_needs_no_baseline(tmp_path: Path) -> None:
    clock = Clock()
    with Journal(tmp_path / "runs.jsonl", SETTINGS, clock=clock) as journal:
        assert journal.due([RECYCLE], 0) == journal.lacking([RECYCLE], 0) == [RECYCLE]
        add(journal, RECYCLE)
        clock.now += 1e4
        assert journal.due([RECYCLE], 0) == journal.lacking([RECYCLE], 0) == []
        assert journal.lacking([RECYCLE, INLINE], 0) == [RECYCLE, INLINE]


def test_a_policy_that_comes_later_is_not_compared_with_an_old_baseline(tmp_path: Path) -> None:
    clock = Clock()
    with Journal(tmp_path / "runs.jsonl", SETTINGS, clock=clock) as journal:
        add(journal, INLINE, wall=2.0)
        clock.now += 1e4
        add(journal, RECYCLE, wall=1.0)
        assert journal.due([INLINE, RECYCLE], 0) == [INLINE]
        assert journal.lacking([INLINE, RECYCLE], 0) == [RECYCLE]
        runs = {cell: journal.runs(cell) for cell in (INLINE, RECYCLE)}
    results = pipeline_report.summarize(SETTINGS, runs, {})
    assert results["cells"][1]["against"] is None
    assert pipeline_report.findings(results["cells"]) == []
    assert "| 4 KiB | recycle | 1.00 (1.00-1.00) | - |" in pipeline_report.markdown(results)


def test_failed_runs_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with Journal(path, SETTINGS, clock=Clock()) as journal:
        journal.add(INLINE, 0, {"error": "exit code 1"}, 1e9)
        assert journal.runs(INLINE) == {(0, 1): {"error": "exit code 1", "sitting": 1}}
    with Journal(path, SETTINGS, clock=Clock()) as journal:
        assert journal.due([INLINE], 0) == [INLINE]
        add(journal, INLINE)
    with Journal(path, SETTINGS) as journal:
        assert journal.runs(INLINE) == {(0, 1): run(1.0)}


@pytest.mark.parametrize("wrong", [False, True])
def test_what_failed_is_told_when_it_was_made_again(tmp_path: Path, wrong: bool) -> None:
    """And is a failure all the same if a proof was wrong."""
    first = {"error": "wrong", "wrong_proof": True} if wrong else {"error": "busy"}
    with Journal(tmp_path / "runs.jsonl", SETTINGS) as journal:
        for _ in range(2):
            journal.add(INLINE, 0, first, journal.clock())
        add(journal, INLINE)
        for error in ("hangs", "hangs", "is killed"):
            journal.add(RECYCLE, 0, {"error": error}, journal.clock())
    with Journal(tmp_path / "runs.jsonl", SETTINGS) as journal:
        runs = {cell: journal.runs(cell) for cell in (INLINE, RECYCLE)}
        results = pipeline_report.summarize(SETTINGS, runs, {}, journal.failed())
    failed = [
        f"2^5 seed, recycle, 4 KiB pages, round 1: {error}" for error in ("hangs", "is killed")
    ]
    if wrong:
        earlier = "2^5 seed, inline, 4 KiB pages, round 1: wrong"
        assert (results["failures"], results["made_again"]) == ([earlier, *failed], [])
    else:
        earlier = "2^5 seed, inline, 4 KiB pages, round 1: busy"
        assert (results["failures"], results["made_again"]) == (failed, [earlier])
        assert f"* **made again** {earlier}" in pipeline_report.markdown(results)


def test_two_processes_do_not_add_to_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with Journal(path, SETTINGS) as journal:
        with pytest.raises(PipelineError, match="another process adds its runs there; give"):
            Journal(path, SETTINGS)
        add(journal, INLINE)
        assert path.read_bytes().count(b"\n") == 2  # as soon as it is made
    with Journal(path, SETTINGS) as journal:
        assert journal.due([INLINE], 0) == []


@pytest.mark.parametrize("replaced", [False, True])
def test_a_journal_that_is_taken_away_is_told(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "runs.jsonl"
    with Journal(path, SETTINGS) as journal:
        path.unlink()
        if replaced:
            path.touch()
        with pytest.raises(PipelineError, match=r"runs\.jsonl: cannot be written: (No such|anoth)"):
            add(journal, INLINE)


def test_runs_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    """Whatever the lines of that version look like."""
    with Journal(tmp_path / "runs.jsonl", SETTINGS):
        pass
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"run": {}}\n')
    with pytest.raises(PipelineError, match="give another folder"):
        Journal(tmp_path / "runs.jsonl", {**SETTINGS, "circuits": 3})


def test_one_circuit_is_no_circuits() -> None:
    assert [circuits_of(count, 5) for count in (1, 2)] == ["1 circuit of 2^5", "2 circuits of 2^5"]


DAMAGED = (b"{broken", b"garbage", b"\xff", b"[]", b"1", b'{"round": 1}', b"")


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "damage",
    [
        *(lambda _, new=new: new for new in DAMAGED),
        lambda _: b"[" * 200_000,
        lambda _: b'{"a":' * 200_000,
        lambda line: line.replace(b"1", b"2", 1),
        lambda line: line.replace(b"true", b"false").replace(b"seed", b"sede"),
        lambda line: line[:-2] + b'"x": 1}',
    ],
)
def test_a_damaged_journal_is_told_in_a_line(
    tmp_path: Path, number: int, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "runs.jsonl"
    with Journal(path, SETTINGS) as journal:
        for made in range(3):
            add(journal, INLINE, number=made)
    lines = path.read_bytes().splitlines()
    lines[number - 1] = damage(lines[number - 1])
    damaged = b"\n".join([*lines, b""])
    path.write_bytes(damaged)
    with pytest.raises(PipelineError) as told:
        Journal(path, SETTINGS)
    (line,) = str(told.value).splitlines()
    if "its runs are not comparable" in line:
        assert number == 1
    else:
        assert f"runs.jsonl: line {number} is damaged" in line
        assert ("remove the line" in line) == (number > 1)
    assert path.read_bytes() == damaged


def test_policies_that_cannot_run_here_are_told_apart(tmp_path: Path) -> None:
    assert POLICIES["recycle+pinned"].refusal("cpu", None) == "needs a GPU"
    assert POLICIES["recycle+pinned"].refusal("cuda", None) is None
    assert POLICIES["glibc"].refusal("cpu", None) is None
    absent = Contender("jemalloc", library="no-such-malloc", package="libnosuch")
    asked = {"MALLOC_CONF": "thp:always"}
    policy = Policy("x", "", "system", "system", malloc=absent, ask_for_huge=asked)
    assert policy.refusal("cpu", None) == "not installed here (apt install libnosuch)"
    library = tmp_path / "libno-such-malloc.so.1"
    library.touch()
    assert policy.refusal("cpu", tmp_path) is None
    huge, small = (policy.variables(regime, tmp_path) for regime in ("huge", "4 KiB"))
    assert huge["LD_PRELOAD"] == small["LD_PRELOAD"] == str(library)
    assert huge["MALLOC_CONF"] == "thp:always"
    assert "MALLOC_CONF" not in small


FREED_ELSEWHERE = """
import resource, threading
from collections import deque
from bench import machine
from bigmem import SystemAllocator, full

machine.keep_to_regime()
made = deque()
faults = []
for number in range(6):
    ours = lambda: made.append([full(5 << 20, 1.0, allocator=SystemAllocator()) for _ in range(2)])
    thread = threading.Thread(target=ours)
    thread.start()
    thread.join()
    made.clear()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0])
"""


@pytest.mark.parametrize("name", ["glibc", "jemalloc"])
def test_a_tuned_malloc_keeps_what_another_thread_has_freed(name: str) -> None:
    """Two blocks of 40 MiB, five times; as it comes, it gives both back each time."""
    faults = {}
    for policy in (POLICIES[name], POLICIES[f"{name} tuned"]):
        if refusal := policy.refusal("cpu", None):
            pytest.skip(refusal)
        command = [sys.executable, "-c", FREED_ELSEWHERE]
        variables = policy.variables("4 KiB", None)
        faults[policy.name] = int(subprocess.check_output(command, env=variables, text=True))
    pages = 5 * 2 * 40 * 256
    assert faults[f"{name} tuned"] < pages / 2 < faults[name]


@pytest.mark.parametrize("policy", [p for p in POLICIES.values() if p.assignments != "pinned"])
def test_every_policy_has_its_allocators(policy: Policy) -> None:
    for kind in (policy.backend, policy.assignments):
        with make_allocator(kind, "4 KiB") as allocator:
            block = allocator.allocate(1 << 20)
            del block
            assert allocator.flush()
            stats = allocator.stats()
            assert stats.live == stats.pending == stats.reclaiming == 0
            assert (stats.warm > 0) == (kind == "recycle")
