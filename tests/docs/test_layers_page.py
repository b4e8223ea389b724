"""What docs/layers.md shows is what was measured, and its examples run."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")


def test_the_figures_are_the_committed_results() -> None:
    assert (ROOT / "bench" / "results" / "layers.md").read_text(encoding="utf-8").strip() in PAGE


def test_the_examples_run() -> None:
    examples = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    small = examples.replace("1 << 25", "1 << 16")
    assert small != examples
    done = subprocess.run(
        [sys.executable, "-c", small], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stderr == ""
    head, outside, inside, *_ = done.stdout.splitlines()
    assert head.split() == ["layer", "calls", "wall", "s", "inside", "s", "gap", "s", "gap", "%"]
    assert (outside.split()[:2], inside.split()[:2]) == (["outside", "1"], ["inside", "1"])
