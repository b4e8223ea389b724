"""What docs/pipeline.md shows is what was measured, and what it says can be asked for."""

import json
import re
import shlex
from pathlib import Path

import pytest

from bench import pipeline, pipeline_report

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
RESULTS = ROOT / "bench" / "results"


def between(name: str) -> str:
    return PAGE.split(f"<!-- begin {name} -->")[1].split(f"<!-- end {name} -->")[0].strip()


@pytest.mark.parametrize("part", ["cpu", "cuda", "cuda-20", "cuda-large", "cuda-normal"])
def test_tables_are_the_committed_results(part: str) -> None:
    table, figures = (RESULTS / f"pipeline-{part}.{kind}" for kind in ("md", "json"))
    text = table.read_text(encoding="utf-8")
    assert between(f"pipeline-{part}.md") == text.strip()
    assert pipeline_report.markdown(json.loads(figures.read_text())) == text
    assert "**failed**" not in text


def test_every_policy_is_told() -> None:
    assert between("policies") == "\n".join(pipeline_report.policies_table())


def test_pictures_come_with_the_results() -> None:
    pictures = re.findall(r"\]\(\.\./bench/results/(pipeline-\w+-\w+\.png)\)", PAGE)
    questions = ("time", "tax", "resident")
    assert pictures == [
        f"pipeline-{of}-{about}.png" for of in ("cpu", "cuda") for about in questions
    ]
    for picture in pictures:
        assert (RESULTS / picture).is_file()


def test_commands_can_be_given() -> None:
    assert re.search(r"^bench-pipeline:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    page = PAGE.replace("\\\n", " ")
    commands = re.findall(r"^\.venv/bin/python -m bench\.pipeline (--backend .*)$", page, re.M)
    assert commands
    for command in commands:
        assert pipeline.parse(shlex.split(command)).backend == "cuda"
