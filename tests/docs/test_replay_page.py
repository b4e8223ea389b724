"""What docs/replay.md shows is what was measured, of the logs that are there."""

import json
from pathlib import Path

from bench import machine, replay, replay_report
from bench.replay_log import load

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
RESULTS = ROOT / "bench" / "results"


def test_the_tables_are_the_committed_results() -> None:
    tables = (RESULTS / "replay.md").read_text(encoding="utf-8").strip()
    assert f"<!-- begin replay.md -->\n\n{tables}\n\n<!-- end replay.md -->" in PAGE


def test_the_results_are_of_the_committed_logs_on_every_allocator() -> None:
    content = json.loads((RESULTS / "replay.json").read_text(encoding="utf-8"))
    logs = {path.name.partition(".")[0]: path for path in replay.LOGS.glob("*.json.gz")}
    assert set(content["logs"]) == set(logs)
    for name, found in content["logs"].items():
        assert found["log"] == load(logs[name]).facts
        assert list(found["regimes"]) == list(machine.REGIMES)
        for results in found["regimes"].values():
            assert list(results) == list(replay.CONTENDERS)


def test_the_tables_are_those_of_the_figures() -> None:
    content = json.loads((RESULTS / "replay.json").read_text(encoding="utf-8"))
    tables = replay_report.page(content).rpartition("Machine:")[0]
    assert tables in PAGE
