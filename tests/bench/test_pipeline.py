"""The pipeline's comparison from end to end, at a size whose figures mean nothing."""

import fcntl
import json
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import pipeline, pipeline_report
from bench.pipeline_cells import Cell
from bench.pipeline_inputs import Inputs
from bench.pipeline_journal import Journal
from prover.errors import MalformedFile

LOG2, CIRCUITS = 6, 2
FEW = ("--modes", "seed", "--policies", "inline", "recycle", "recycle+pinned")
WORDS = ["--log2", str(LOG2), "--circuits", str(CIRCUITS), "--curve", "bn128", "--runs", "1",
         "--unexplained", "1"]  # fmt: skip


def compare(folder: Path, *words: str) -> int:
    return pipeline.main([*WORDS, "-o", str(folder), *words])


def cells(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    entries = json.loads((folder / "pipeline-cpu.json").read_text())["cells"]
    return {(entry["regime"], entry["policy"]): entry for entry in entries}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one comparison of a few policies."""
    folder = tmp_path_factory.mktemp("pipeline")
    assert compare(folder, *FEW) == 0
    return folder


def test_every_cell_is_measured_or_says_why_not(made: Path) -> None:
    found = cells(made)
    assert len(found) == 6
    for (_, policy), entry in found.items():
        if policy == "recycle+pinned":
            assert entry["not_run"] == "needs a GPU"
            continue
        assert entry["runs"] == 1
        assert entry["wall_s"]["median"] > entry["inner_s"]["median"] > 0
        assert {"NTT/MSM-H", "tail MSMs", "B in G2", "epilogue", "gap"} <= set(entry["layers"])
        blocks = {name: owner["allocations"] for name, owner in entry["owners"].items()}
        # Of each circuit w, a, b, c, and two masks of the key.
        assert blocks["assignments"] == 4 * CIRCUITS + 2
        assert blocks["vectors"] > 0
        hits = sum(owner["warm_hits"] for owner in entry["owners"].values())
        assert (hits > 0) == (policy == "recycle")
        times = [seconds for seconds, _ in entry["resident"]]
        assert all(0 <= seconds <= entry["wall_s"]["max"] for seconds in times)
    for question in ("time", "tax", "resident"):
        assert (made / f"pipeline-cpu-{question}.png").stat().st_size > 10_000


def test_it_goes_on_where_it_was_stopped(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    journal = (made / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_text("".join(journal[:-1]))  # one run is missing
    last = json.loads(journal[-1])["cell"]
    assert compare(tmp_path, *FEW, "--seconds", "1e-9") == 0
    assert (tmp_path / "runs.jsonl").read_text() == "".join(journal[:-1])
    assert "1 runs are not made yet" in capsys.readouterr().err
    assert cells(tmp_path)[last["regime"], last["policy"]]["not_run"] == "not run yet"
    assert compare(tmp_path, *FEW) == 0
    again = (tmp_path / "runs.jsonl").read_text().splitlines(keepends=True)
    assert again[:-1] == journal[:-1]
    assert json.loads(again[-1])["cell"] == last


def test_runs_under_another_limit_are_not_mixed_in(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    assert compare(tmp_path, *FEW, "--unexplained", "0.001") == 2
    assert "its runs are not comparable" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["_json", "markdown"])
def test_an_interrupt_of_what_is_written_is_told_in_a_line(
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline_report, step, interrupt)
    assert compare(tmp_path, *FEW) == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "pipeline: interrupted; the same command writes what is missing"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_keeps_what_was_measured(made: Path, tmp_path: Path, number: int) -> None:
    shutil.copytree(made / "inputs", tmp_path / "inputs")
    many = [*WORDS, "--modes", "normal", "--policies", "inline", "--runs", "1000"]
    command = [sys.executable, "-m", "bench.pipeline", *many, "-o", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        journal = tmp_path / "runs.jsonl"
        while not journal.exists() or journal.read_bytes().count(b"\n") < 2:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        page, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    lines = journal.read_text().splitlines()[1:]
    regimes = {json.loads(line)["cell"]["regime"] for line in lines}
    runs = {regime: entry.get("runs", 0) for (regime, _), entry in cells(tmp_path).items()}
    assert {regime for regime, count in runs.items() if count} == regimes
    assert sum(runs.values()) == len(lines)
    assert page == (tmp_path / "pipeline-cpu.md").read_text()


def test_a_thinned_curve_keeps_its_peak() -> None:
    samples = [(i / 100, 1000 + (i == 777)) for i in range(1000)]
    kept = pipeline.thinned(samples)
    assert len(kept) <= 60
    assert (7.77, 1001) in kept
    assert pipeline.thinned(samples[:3]) == samples[:3]
    assert pipeline.thinned([]) == []


def test_a_run_that_fails_is_told_and_made_again(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "inputs", tmp_path / "inputs")
    last = Inputs(tmp_path / "inputs" / "bn128", "bn128", LOG2, CIRCUITS).witnesses[-1]
    right = last.read_bytes()
    last.write_bytes(right[:-32] + bytes([right[-32] ^ 1]) + right[-31:])
    words = ("--modes", "normal", "--policies", "inline", "--regimes", "huge")
    assert compare(tmp_path, *words) == 1
    assert "does not satisfy the circuit" in capsys.readouterr().out
    assert [entry["not_run"] for entry in cells(tmp_path).values()] == ["failed"]
    last.write_bytes(right)
    assert compare(tmp_path, *words) == 0  # what failed is made again
    assert [entry["runs"] for entry in cells(tmp_path).values()] == [1]


class Runs:
    """Runs that take no time, but that of a clock, and fail where a test wants it."""

    def __init__(self, good: dict[str, Any]) -> None:
        self.good = good
        self.made: list[Cell] = []
        self.warmed: list[int] = []
        self.failing: set[str] = set()
        self.now = 1e9
        self.seconds = 1.0

    def measure(self, _: pipeline.Comparison, cell: Cell) -> dict[str, Any]:
        self.made.append(cell)
        self.now += self.seconds
        return {"error": "exit code 1"} if cell.policy in self.failing else self.good

    def policies(self) -> list[str]:
        """Of the runs made since this was asked."""
        made, self.made = self.made, []
        return [cell.policy for cell in made]


@pytest.fixture
def runs(made: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs(json.loads((made / "runs.jsonl").read_text().splitlines()[1])["run"])
    comparison = pipeline.Comparison
    monkeypatch.setattr(comparison, "measure", lambda *given: runs.measure(*given))
    monkeypatch.setattr(comparison, "_warm_up", lambda _, log2: runs.warmed.append(log2))
    monkeypatch.setattr(Inputs, "make", lambda *_: None)
    monkeypatch.setattr(
        pipeline, "Journal", partial(Journal, clock=lambda: runs.now, boot="this start")
    )
    return runs


THREE = ("--modes", "seed", "--policies", "inline", "early", "recycle", "--regimes", "huge")


def test_what_failed_before_comes_last(tmp_path: Path, runs: Runs) -> None:
    """So that it never takes the time of what can be measured; and is tried once a call."""
    runs.failing = {"recycle"}
    assert compare(tmp_path, *THREE) == 1
    assert sorted(runs.policies()) == ["early", "inline", "recycle"]
    runs.failing.add("early")
    assert compare(tmp_path, *THREE, "--runs", "3") == 1
    made = runs.policies()
    assert sorted(made[:3]) == sorted(made[3:6]) == ["early", "inline", "recycle"]
    assert made[6:] == ["recycle"]
    runs.failing.clear()
    assert compare(tmp_path, *THREE, "--runs", "3") == 0
    assert sorted(runs.policies()) == ["early"] * 2 + ["recycle"] * 3
    assert [entry["runs"] for entry in cells(tmp_path).values()] == [3, 3, 3]


def test_a_baseline_that_always_fails_is_tried_once_a_round(tmp_path: Path, runs: Runs) -> None:
    runs.failing = {"inline"}
    assert compare(tmp_path, *THREE, "--runs", "2") == 1
    assert len(runs.policies()) == 6
    runs.now += 1e4
    assert compare(tmp_path, *THREE, "--runs", "2") == 1
    assert runs.policies() == ["inline"] * 2
    runs.failing.clear()
    assert compare(tmp_path, *THREE, "--runs", "2") == 0
    made = runs.policies()
    assert sorted(made) == ["early"] * 2 + ["inline"] * 2 + ["recycle"] * 2
    assert made[0] == made[3] == "inline"


def test_rounds_that_nobody_asks_for_do_not_fail(tmp_path: Path, runs: Runs) -> None:
    assert compare(tmp_path, *THREE, "--runs", "1") == 0
    runs.failing = {"early"}
    assert compare(tmp_path, *THREE, "--runs", "2") == 1
    assert compare(tmp_path, *THREE, "--runs", "1") == 0


def test_long_runs_are_of_one_sitting(tmp_path: Path, runs: Runs) -> None:
    runs.seconds = 1e4
    assert compare(tmp_path, *THREE, "--runs", "2") == 0
    assert len(runs.policies()) == 6
    assert [entry["sittings"] for entry in cells(tmp_path).values()] == [[1, 1]] * 3


def test_rounds_are_in_orders_of_their_own_a_size_at_a_time(tmp_path: Path, runs: Runs) -> None:
    words = (*FEW, "--modes", "seed", "normal", "--runs", "4", "--log2", "6", "7")
    assert compare(tmp_path, *words) == 0
    each = 2 * 2 * 2
    parts = [runs.made[at : at + each] for at in range(0, len(runs.made), each)]
    assert [{cell.log2 for cell in part} for part in parts] == [{6}, {7}] * 4
    assert runs.warmed == [6, 7] * 4
    orders = {tuple((c.mode, c.policy, c.regime) for c in part) for part in parts[::2]}
    assert len(orders) == 4
    assert len({frozenset(order) for order in orders}) == 1


def test_nothing_is_begun_after_the_time(tmp_path: Path, runs: Runs) -> None:
    assert compare(tmp_path, *THREE, "--seconds", "1e-9") == 0
    assert (runs.made, runs.warmed) == ([], [])


@pytest.mark.parametrize("what", ["ahead", "sources", "machine"])
def test_runs_that_differ_in_this_are_not_mixed(
    tmp_path: Path,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
) -> None:
    assert compare(tmp_path, *THREE) == 0
    words = list(THREE)
    if what == "ahead":
        words += ["--ahead", "1MiB"]
    elif what == "sources":
        monkeypatch.setattr(pipeline.machine, "sources", lambda *_: "another")
    else:
        monkeypatch.setattr(pipeline.machine, "describe", lambda: {"cores": 1000})
    assert compare(tmp_path, *words) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert f"they were made with {{'{what}': " in line
    assert "circuits" not in line  # which are the same


@pytest.mark.parametrize("raised", [False, True])
def test_a_wrong_proof_is_a_failure_for_ever(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: bool
) -> None:
    def judge(*_: object) -> str:
        if raised:
            raise MalformedFile("proof.json", "is no proof")
        return "a proof does not verify"

    words = (*FEW, "--policies", "inline", "--regimes", "huge", "--inputs", str(made / "inputs"))
    with monkeypatch.context() as patched:
        patched.setattr(Inputs, "judge", judge)
        assert compare(tmp_path / "a" / "b", *words) == 1
    assert compare(tmp_path / "a" / "b", *words) == 1
    results = json.loads((tmp_path / "a" / "b" / "pipeline-cpu.json").read_text())
    assert [entry["runs"] for entry in results["cells"]] == [1]
    assert len(results["failures"]) == 1


def test_a_run_that_hangs_is_ended(
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(made / "inputs", tmp_path / "inputs")
    monkeypatch.setattr(pipeline, "MOST_SECONDS_BESIDE", 0.01)
    words = ("--modes", "normal", "--policies", "inline", "--regimes", "huge")
    assert compare(tmp_path, *words) == 1
    assert "inline, round 1: took longer than 0 s" in capsys.readouterr().out.replace(
        ", huge pages", ""
    )
    assert psutil.Process().children() == []


@pytest.mark.parametrize(
    ("words", "available", "expected"),
    [
        (["--backend", "cpu"], 96, 16 << 26),
        (["--backend", "cpu", "--ahead", "900GiB"], 96, 32 << 30),
        (["--backend", "cuda"], 96, 16 << 30),
        (["--backend", "cuda"], 12, 4 << 30),
        (["--backend", "cuda", "--ahead", "40GiB"], 180, (40 << 30) + (8 << 26)),
    ],
)
def test_the_host_is_made_to_give_what_runs_may_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    available: int,
    expected: int,
) -> None:
    """All of it before the first run, whichever part of the machine's memory that will get."""
    asked: list[list[str]] = []
    monkeypatch.setattr(pipeline, "_gpu", dict)
    monkeypatch.setattr(pipeline.osmem, "available_bytes", lambda: available << 30)
    monkeypatch.setattr(pipeline.machine, "describe", dict)
    options = pipeline.parse(["--log2", "21", "-o", str(tmp_path), *words])
    comparison = pipeline.Comparison(options)
    monkeypatch.setattr(pipeline.subprocess, "run", lambda words, **_: asked.append(words))
    comparison._warm_up(21)
    assert [words[-2:] for words in asked] == [["bench.machine", str(expected)]]


def test_proofs_of_other_circuits_are_not_taken(made: Path) -> None:
    inputs = Inputs(made / "inputs" / "bn128", "bn128", LOG2, CIRCUITS)
    proofs = []
    for witness in inputs.witnesses:
        files = made / f"{witness.stem}.proof", made / f"{witness.stem}.public"
        command = [sys.executable, "-m", "prover", "prove", inputs.key, witness, *files]
        subprocess.run(list(map(str, command)), check=True, timeout=60)
        proofs.append(files)
    assert inputs.judge(proofs) is None
    assert "is not about" in str(inputs.judge(proofs[::-1]))
    mixed = [(proofs[1][0], proofs[0][1]), proofs[1]]
    assert "does not verify" in str(inputs.judge(mixed))
    assert "1 proofs of 2 circuits" in str(inputs.judge(proofs[:1]))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--log2", "4"], "from 5 to 27"),
        (["--ahead", "much"], "is no size"),
        (["--runs", "0"], "'0' is no number from 1"),
        (["--seconds", "nan"], "'nan' is no number above 0"),
        (["--seconds", "-3"], "'-3' is no number above 0"),
        (["-o", "/dev/null"], "/dev/null"),
        (["--unexplained", "nan"], "'nan' is no part of one: give 0 to 1"),
        (["--unexplained", "half"], "'half' is no part of one: give 0 to 1"),
    ],
)
def test_senseless_words_are_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare(tmp_path, *words)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err.splitlines()[-1]


def test_a_missing_gpu_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # where there is one, too
    assert compare(tmp_path, "--backend", "cuda") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pipeline: --backend cuda finds no GPU here: ")


@pytest.mark.parametrize("name", ["runs.jsonl", "pipeline-cpu.json", "pipeline-cpu-tax.png"])
def test_results_that_cannot_be_written_are_told_before_any_run(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shutil.copytree(made / "inputs", tmp_path / "inputs")
    (tmp_path / name).mkdir()
    assert compare(tmp_path, *FEW) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line
    assert "is a directory" in line.lower()


@pytest.mark.parametrize(("mode", "least"), [("normal", 3 * 4096), ("seed", 6 * 4096)])
def test_room_for_no_circuit_is_told_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str, least: int
) -> None:
    words = ("--policies", "inline", "--modes", mode, "--regimes", "huge", "--ahead")
    assert compare(tmp_path, *words, str(least - 1)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"holds no circuit of 2^6 in {mode} mode, which takes {least >> 10} KiB")
    assert list(tmp_path.iterdir()) == []
    assert compare(tmp_path, *words, str(least)) == 0


def test_policies_of_which_none_can_run_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, "--policies", "recycle+pinned", "pinned ahead") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "pipeline: none of the policies can be run here: recycle+pinned: needs a GPU; "
        "pinned ahead: needs a GPU"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_full_is_told(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    command = [sys.executable, "-m", "bench.pipeline", *WORDS, *FEW, "-o", str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"pipeline: the output was cut off: no space left on device; {tmp_path}/pipeline-cpu.md "
        "has it"
    )


def test_a_second_process_is_told_in_a_line(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (made / "runs.jsonl").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert compare(made, *FEW) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "another process adds its runs there" in line


def test_runs_of_other_settings_stay(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (made / "runs.jsonl").read_bytes()
    assert compare(made, "--circuits", "3") == 2
    assert "not comparable" in capsys.readouterr().err
    assert (made / "runs.jsonl").read_bytes() == before
