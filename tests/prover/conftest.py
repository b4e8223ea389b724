"""Runs the command line in this process, and states what every refusal has in common."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from prover.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capfd):
    """The command ``prover`` with the given words."""

    def run(*words) -> Outcome:
        capfd.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as exit:  # argparse
            code = int(exit.code or 0)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def folder(tmp_path):
    """An empty folder for outputs."""
    path = tmp_path / "out"
    path.mkdir()
    return path


@pytest.fixture
def prove(cli, folder):
    """``prover prove`` into the folder for outputs."""
    return lambda key, witness, *options: cli(
        "prove", key, witness, folder / "proof.json", folder / "public.json", *options
    )


@pytest.fixture
def refused():
    """Assert exit code 2, one line on stderr, nothing else; the line."""

    def check(outcome: Outcome, *folders: Path) -> str:
        assert outcome.code == 2, outcome
        assert outcome.out == ""
        assert outcome.err.endswith("\n")
        (line,) = outcome.err.splitlines()
        assert line.startswith("prover")
        for folder in folders:
            assert list(folder.iterdir()) == []
        return line

    return check


@pytest.fixture
def valid(cli, folder):
    """Whether what `prove` wrote verifies for a fixture's own verification key."""

    def check(circuit) -> bool:
        key = circuit.folder / "verification_key.json"
        outcome = cli("verify", key, folder / "public.json", folder / "proof.json")
        assert outcome.code in (0, 1), outcome
        return outcome.code == 0

    return check
