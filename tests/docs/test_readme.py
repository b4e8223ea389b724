"""What the README says is what the repository does and measured."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("result", ["demo.md", "peers.md", "release.md"])
def test_tables_are_the_committed_results(result: str) -> None:
    assert (ROOT / "bench" / "results" / result).read_text(encoding="utf-8").strip() in README


def test_every_command_exists() -> None:
    targets = re.findall(r"^make (\S+)", "\n".join(blocks("sh")), flags=re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)
