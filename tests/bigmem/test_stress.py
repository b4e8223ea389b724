"""Many threads, cross-thread frees, cycles, signals and forks at once; `make stress` takes longer.

``BIGMEM_STRESS_SECONDS`` says how long the storms last together.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

STRESS = Path(__file__).parent / "stress.py"
SECONDS = float(os.environ.get("BIGMEM_STRESS_SECONDS", "6"))


def stress(*arguments: str, timeout: float) -> None:
    """Run it in a process of its own; its standard output is its progress."""
    done = subprocess.run(
        [sys.executable, str(STRESS), *arguments],
        stderr=subprocess.PIPE,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize("budget", [(), ("192MiB",)], ids=["unlimited", "budget"])
def test_every_byte_is_its_own_and_all_memory_comes_back(budget: tuple[str, ...]) -> None:
    seed = random.randrange(10**6)
    stress("storm", str(SECONDS / 2), str(seed), *budget, timeout=SECONDS + 120)


def test_200_children_flush_while_the_reclaimer_is_busy() -> None:
    stress("forks", "200", timeout=120)
