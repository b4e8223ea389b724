"""The example of a plug-in, installed as its users would install it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "plugin"
Python = Callable[..., str]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Runs Python where the plug-in is installed; it must exit with 0."""
    target = tmp_path_factory.mktemp("site")

    def run(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(target), **environment},
            cwd=target,
            check=False,
            timeout=120,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(
        *("-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--no-deps"),
        *("--no-build-isolation", "--target", str(target), str(PLUGIN)),
    )
    return run


def test_make_finds_it_by_name(python: Python) -> None:
    program = """
import bigmem
import numpy as np
allocator = bigmem.make("shared")
array = bigmem.full(1 << 20, 3.0, allocator=allocator)
print(type(allocator).__module__, type(allocator).__name__, array.sum() == 3 << 20)
"""
    assert python("-c", program).split() == ["bigmem_shared", "SharedAllocator", "True"]


def test_the_environment_and_the_command_line_name_it(python: Python, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import numpy as np
from bigmem import get_allocator, live_blocks
array = np.ones(1 << 20)
print(get_allocator().name, sum(block.allocator == get_allocator().name for block in live_blocks()))
""")
    run = ("-m", "bigmem", "run")
    assert python(*run, "--allocator", "shared", str(script)) == "SharedAllocator 1\n"
    assert python(*run, str(script), BIGMEM_ALLOCATOR="shared") == "SharedAllocator 1\n"


def test_an_unknown_name_lists_it(python: Python) -> None:
    program = """
import bigmem
try:
    bigmem.make("shard")
except bigmem.BigmemError as error:
    print(error)
"""
    assert "recycle, shared, system" in python("-c", program)


def test_it_passes_its_own_tests_the_contract_among_them(python: Python) -> None:
    said = python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLUGIN))
    assert "failed" not in said
    passed = int(said.splitlines()[-1].split(" passed")[0].split()[-1])
    assert passed > 40
