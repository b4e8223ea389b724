"""What docs/pinned.md shows is what was measured, and what it names exists."""

import re
from pathlib import Path

import pytest

import bigmem.cuda
from bigmem import _core
from bigmem.cuda import driver

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pinned.md").read_text(encoding="utf-8")
RESULTS = ROOT / "bench" / "results" / "pinned.md"


def test_tables_are_the_committed_results() -> None:
    if RESULTS.exists():
        assert RESULTS.read_text(encoding="utf-8").strip() in PAGE
    else:
        assert "Machine:" not in PAGE, "figures, and no results that they are from"


def test_examples_are_python_and_every_name_exists() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert examples
    for example in examples:
        compile(example, "docs/pinned.md", "exec")
    names = set(re.findall(r"bigmem\.cuda\.(\w+)", PAGE))
    assert {"PinnedAllocator", "record", "upload", "install_cupy", "capturing"} <= names
    assert not {name for name in names if not hasattr(bigmem.cuda, name)}


def test_members_of_the_allocator_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_addresses", _core.FakeCuda().functions)
    monkeypatch.setattr(driver, "_loaded", None)
    with bigmem.cuda.PinnedAllocator() as pinned:
        names = set(re.findall(r"`pinned\.(\w+)", PAGE))
        assert {"mechanism", "prefault", "stalls"} <= names
        assert not {name for name in names if not hasattr(pinned, name)}
