"""snarkjs as the outside judge: installed on first use, a failure (never a skip) without it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.node import node_directory, snarkjs_command

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def snarkjs() -> Run:
    """Runs snarkjs with the given words and returns what it printed and its exit code."""
    command = snarkjs_command()

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *map(str, words)], capture_output=True, text=True, timeout=120
        )

    return run


@pytest.fixture(scope="session")
def node_path(snarkjs: Run) -> dict[str, str]:
    """An environment in which ``node`` is the pinned one, and Python this one."""
    return {
        **os.environ,
        "PYTHON": sys.executable,
        "PATH": f"{node_directory() / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
