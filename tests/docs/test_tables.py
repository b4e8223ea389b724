"""Tables of the pages: each row has as many cells as the head."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench" / "results").glob("*.md")]
)


def crooked(text: str) -> list[str]:
    """Rows that are longer or shorter than the first of their table."""
    found = []
    width, in_code = 0, False
    for line in text.splitlines():
        in_code ^= line.startswith("```")
        if in_code or not line.lstrip().startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        if cells != width:
            found.append(line)
    return found


def test_a_crooked_row_is_found() -> None:
    assert crooked("| a | b |\n|---|---|\n| 1 |\n| 1 | `x \\| y` |\n") == ["| 1 |"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_are_as_long_as_heads(page: Path) -> None:
    assert crooked(page.read_text(encoding="utf-8")) == []
