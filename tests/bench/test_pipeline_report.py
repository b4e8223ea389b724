"""What the comparison of the pipeline says of its runs, and that it can be stopped and goes on."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import machine, pipeline_report
from bench.core.contenders import Contender
from bench.pipeline_cells import POLICIES, Cell, Policy, make_allocator
from bench.pipeline_inputs import PipelineError
from bench.pipeline_journal import Journal

SETTINGS = {"backend": "cpu", "curve": "bn128", "circuits": 2, "machine": machine.describe()}
INLINE, RECYCLE = (Cell(5, "seed", "4 KiB", name) for name in ("inline", "recycle"))


def run(wall: float, **more: Any) -> dict[str, Any]:
    zeros = dict.fromkeys(pipeline_report.FIGURES, 0.0)
    resident = [[0.0, 1 << 20], [0.1, 3 << 20]]
    return {
        **zeros, "wall_s": wall, "inner_s": 1.0, "resident": resident, "layers": {"ntt": wall / 2},
        "owners": {}, "budget_bytes": 3 << 20, "sitting": 1, **more,
    }  # fmt: skip


def summary(**runs: list[dict[str, Any]]) -> dict[str, Any]:
    by_cell = {Cell(5, "seed", "4 KiB", name): dict(enumerate(all)) for name, all in runs.items()}
    return pipeline_report.summarize(SETTINGS, by_cell, {"jemalloc": "not installed here"})


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


def test_all_that_gained_or_took_longer_are_named() -> None:
    walls = {"inline": 2.0, "detached": 1.5, "early": 1.4, "recycle": 1.0, "madvise": 2.2}
    runs = {name: [run(wall)] * 5 for name, wall in walls.items()}
    results = summary(**runs, explicit=[*[run(1.0)] * 4, run(2.1)], mimalloc=[run(1.2)] * 4)
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
    results = summary(inline=[run(1.0)], jemalloc=[], recycle=[], early=[{"error": "exit code 2"}])
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


def test_results_are_written_with_a_picture_a_question(tmp_path: Path) -> None:
    results = summary(inline=[run(1.0)], recycle=[run(0.9)], jemalloc=[])
    page = pipeline_report.write(results, tmp_path, "pipeline-cpu")
    assert {path.name for path in tmp_path.iterdir()} == {
        "pipeline-cpu.json", "pipeline-cpu.md",
        *(f"pipeline-cpu-{question}.png" for question in ("time", "tax", "resident")),
    }  # fmt: skip
    assert (tmp_path / "pipeline-cpu.md").read_text() == page
    assert (
        pipeline_report.markdown(json.loads((tmp_path / "pipeline-cpu.json").read_text())) == page
    )


def test_a_journal_goes_on_after_a_line_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    journal = Journal(path, SETTINGS, clock=lambda: 1e9)
    journal.add(INLINE, 0, run(1.0))
    journal.add(RECYCLE, 0, run(2.0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])  # as if killed while it wrote
    again = Journal(path, SETTINGS, clock=lambda: 1e9)
    assert again.due([INLINE, RECYCLE], 0) == [RECYCLE]
    again.add(RECYCLE, 0, run(2.0))
    assert path.read_bytes() == whole
    assert Journal(path, SETTINGS).runs(RECYCLE) == {0: run(2.0)}


@pytest.mark.parametrize(
    ("later", "boot", "sitting"),
    [(0.0, "one", 1), (599.0, "one", 1), (601.0, "one", 2), (-1.0, "one", 2), (5.0, "two", 2)],
)
def test_a_stopped_round_goes_on_in_the_same_sitting_only(
    tmp_path: Path, later: float, boot: str, sitting: int
) -> None:
    """Else all that share its baseline are made again, and nothing else is."""
    path = tmp_path / "runs.jsonl"
    others = [replace(cell, regime="huge") for cell in (INLINE, RECYCLE)]
    cells = [RECYCLE, *others, INLINE]
    journal = Journal(path, SETTINGS, clock=lambda: 1e9, boot="one")
    for cell in (INLINE, RECYCLE, *others):
        journal.add(cell, 0, run(1.0))
    for cell in (*others, INLINE):
        journal.add(cell, 1, run(1.0))
    assert journal.due(cells, 1) == [RECYCLE]
    again = Journal(path, SETTINGS, clock=lambda: 1e9 + later, boot=boot)
    assert again.sitting == sitting
    assert again.due(cells, 0) == []
    assert again.due(cells, 1) == ([RECYCLE] if sitting == 1 else [RECYCLE, INLINE])
    assert again.due(cells, 2) == cells
    for cell in again.due(cells, 1):
        assert again.due(cells, 1)[0] == cell  # stopped in between, it goes on
        again.add(cell, 1, run(2.0))
    assert again.due(cells, 1) == []
    assert {again.runs(cell)[1]["sitting"] for cell in (INLINE, RECYCLE)} == {sitting}


def test_a_policy_that_comes_later_is_not_compared_with_an_old_baseline(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    journal = Journal(path, SETTINGS, clock=lambda: 1e9)
    for number in range(5):
        journal.add(INLINE, number, run(2.0))
    later = Journal(path, SETTINGS, clock=lambda: 2e9)
    later.add(RECYCLE, 0, run(1.0))
    assert later.due([INLINE, RECYCLE], 0) == [INLINE]

    def results() -> dict[str, Any]:
        runs = {cell: later.runs(cell) for cell in (INLINE, RECYCLE)}
        return pipeline_report.summarize(SETTINGS, runs, {})

    before = results()
    assert before["cells"][1]["against"] is None
    assert pipeline_report.findings(before["cells"]) == []
    assert "| 4 KiB | recycle | 1.00 (1.00-1.00) | - |" in pipeline_report.markdown(before)
    for number in range(4):
        later.add(INLINE, number, run(1.25))
        later.add(RECYCLE, number, run(1.0))
    later.add(RECYCLE, 4, run(0.1))  # and is stopped
    inline, recycle = results()["cells"]
    assert recycle["against"] == {"median": 0.8, "min": 0.8, "max": 0.8}
    assert recycle["runs"] == 4
    assert inline["walls_s"] == [1.25] * 4 + [2.0]
    (sentence,) = pipeline_report.findings([inline, recycle])
    assert sentence.endswith("too few runs to call it a gain.")


def test_failed_runs_are_made_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs.jsonl", SETTINGS)
    journal.add(INLINE, 0, {"error": "exit code 1"})
    assert journal.runs(INLINE) == {0: {"error": "exit code 1", "sitting": 1}}
    again = Journal(tmp_path / "runs.jsonl", SETTINGS)
    assert again.due([INLINE], 0) == [INLINE]
    again.add(INLINE, 0, run(1.0))
    assert Journal(tmp_path / "runs.jsonl", SETTINGS).runs(INLINE) == {0: run(1.0)}


@pytest.mark.parametrize("wrong", [False, True])
def test_what_failed_is_told_when_it_was_made_again(tmp_path: Path, wrong: bool) -> None:
    """And is a failure all the same if a proof was wrong."""
    journal = Journal(tmp_path / "runs.jsonl", SETTINGS)
    journal.add(INLINE, 0, {"error": "wrong", "wrong_proof": True} if wrong else {"error": "busy"})
    journal.add(INLINE, 0, run(1.0))
    journal.add(RECYCLE, 0, {"error": "hangs"})
    journal = Journal(tmp_path / "runs.jsonl", SETTINGS)
    runs = {cell: journal.runs(cell) for cell in (INLINE, RECYCLE)}
    results = pipeline_report.summarize(SETTINGS, runs, {}, journal.failed())
    hangs = "2^5 seed, recycle, 4 KiB pages, round 1: hangs"
    if wrong:
        earlier = "2^5 seed, inline, 4 KiB pages, round 1: wrong"
        assert (results["failures"], results["made_again"]) == ([earlier, hangs], [])
    else:
        earlier = "2^5 seed, inline, 4 KiB pages, round 1: busy"
        assert (results["failures"], results["made_again"]) == ([hangs], [earlier])
        assert f"* **made again** {earlier}" in pipeline_report.markdown(results)


def test_runs_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    """Whatever the lines of that version look like."""
    Journal(tmp_path / "runs.jsonl", SETTINGS)
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"run": {}}\n')
    with pytest.raises(PipelineError, match="give another folder"):
        Journal(tmp_path / "runs.jsonl", {**SETTINGS, "circuits": 3})


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("line", [b"{broken", b"garbage", b"\xff", b"[]", b'{"round": 1}', b""])
def test_a_damaged_journal_is_told_in_a_line(tmp_path: Path, number: int, line: bytes) -> None:
    path = tmp_path / "runs.jsonl"
    journal = Journal(path, SETTINGS)
    for made in range(3):
        journal.add(INLINE, made, run(1.0))
    lines = path.read_bytes().splitlines()
    lines[number - 1] = line
    damaged = b"\n".join([*lines, b""])
    path.write_bytes(damaged)
    with pytest.raises(PipelineError, match=r"runs\.jsonl: (line \d is damaged|its runs are not)"):
        Journal(path, SETTINGS)
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
