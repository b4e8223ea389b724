"""What the README says is what the repository does and measured."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("result", ["demo.md", "peers.md", "release.md"])
def test_tables_are_the_committed_results(result: str) -> None:
    assert (ROOT / "bench" / "results" / result).read_text(encoding="utf-8").strip() in README


def test_the_examples_run(tmp_path: Path) -> None:
    examples = "\n".join(blocks("python"))
    small = examples.replace("1 << 27", "1 << 20")
    assert small != examples
    done = subprocess.run(
        [sys.executable, "-c", small],
        check=True,
        timeout=120,
        capture_output=True,
        cwd=tmp_path,
        text=True,
    )
    assert done.stderr == ""
    assert (tmp_path / "trace.json").is_file()


def test_every_command_exists() -> None:
    targets = re.findall(r"^make (\S+)", "\n".join(blocks("sh")), flags=re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


@pytest.mark.parametrize(
    "verb", re.findall(r"^\.venv/bin/prover (\S+)", "\n".join(blocks("sh")), flags=re.MULTILINE)
)
def test_every_verb_of_the_prover_explains_itself(verb: str) -> None:
    command = [sys.executable, "-m", "prover", verb, "--help"]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert f"prover {verb}" in done.stdout
