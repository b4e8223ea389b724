"""What docs/hook.md shows is what was measured, and its example runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "hook.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("result", ["hook.md", "pipelines.md"])
def test_tables_are_the_committed_results(result: str) -> None:
    assert (ROOT / "bench" / "results" / result).read_text(encoding="utf-8").strip() in PAGE


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    check = "\nassert bigmem.stats().allocations >= 3"
    done = subprocess.run(
        [sys.executable, "-c", example + check],
        check=False,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
