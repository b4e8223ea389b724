"""What docs/gpu.md shows is what was measured, and what it says can be asked for."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu_run import gpu_line
from bench.insert import insert
from prover import backends

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_tables_are_the_committed_results() -> None:
    results = ROOT / "bench" / "results"
    table = (results / "gpu.md").read_text(encoding="utf-8").strip()
    assert table in PAGE
    figures = json.loads((results / "gpu.json").read_text(encoding="utf-8"))
    assert table.splitlines()[-1] == gpu_line(figures["gpu"])


def test_thresholds_are_those_of_the_code() -> None:
    words = " ".join(PAGE.split())
    assert f"from 2^{backends.GPU_WORK.bit_length() - 1} rows on" in words
    assert f"in domains of 2^{backends.GPU_DOMAIN.bit_length() - 1} and more" in words


def test_every_file_of_kernels_is_named() -> None:
    files = (ROOT / "prover" / "backends" / "cuda").glob("*.cu")
    assert sorted(re.findall(r"\[(\w+\.cu)\]", PAGE)) == sorted(path.name for path in files)


@pytest.mark.parametrize(
    ("verb", "option"), re.findall(r"^prover (\w+) .* (--(?:backend|devices)) ", PAGE, re.MULTILINE)
)
def test_options_exist(verb: str, option: str) -> None:
    command = [sys.executable, "-m", "prover", verb, "--help"]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert option in done.stdout


def test_results_replace_those_before() -> None:
    page = "a\n<!-- begin x.md -->\nold\n<!-- end x.md -->\nb\n"
    new = insert(page, "x.md", "new \\1\n")
    assert new == "a\n<!-- begin x.md -->\n\nnew \\1\n\n<!-- end x.md -->\nb\n"
    assert insert(new, "x.md", "new \\1") == new
    with pytest.raises(ValueError, match="0 times"):
        insert(page, "y.md", "new")
