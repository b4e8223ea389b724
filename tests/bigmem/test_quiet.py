"""Fast while it works, honest about memory once it idles: both with default settings."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import machine

PRELUDE = """
import json, resource, sys, time
import numpy as np
import bigmem
from bigmem import osmem

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
"""

IDLER = """
allocator = bigmem.make("recycle")
before = osmem.resident_bytes()

def step(value):
    c = bigmem.empty(256 << 20, np.uint8, allocator=allocator)
    c.fill(value)
    return c

c = None
for value in range(3):
    c = step(value)  # two are alive for a moment: 512 MiB
start = faults()
for value in range(10):
    c = step(value)
taken = (faults() - start) / 10
del c
held = osmem.resident_bytes() - before
end = time.monotonic() + allocator.release.decay + 2
print(json.dumps({"held": held, "faults": taken}), flush=True)
time.sleep(allocator.release.decay / 2 - 0.5)
early = osmem.resident_bytes() - before
time.sleep(max(0, end - time.monotonic()))
left = osmem.resident_bytes() - before
print(json.dumps({"early": early, "left": left}), flush=True)
sys.stdin.read()
"""

# Other programs of the machine move MemAvailable too, seldom the same way several times.
ATTEMPTS = 5


def machine_memory() -> tuple[int, int]:
    """What the machine could give away, and what all its processes have mapped of their own."""
    values = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value, *_ = line.split()
        values[name.rstrip(":")] = int(value) * 1024
    return values["MemAvailable"], values["AnonPages"] + values["Shmem"]


def idle_in_both_regimes() -> tuple[list[dict[str, float]], int, int]:
    """What both processes measured; how MemAvailable, and what is mapped, grew while they idled."""
    program = textwrap.dedent(PRELUDE) + textwrap.dedent(IDLER)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=machine.regime_environment(regime),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for regime in machine.REGIMES
    ]
    # One after the other: each waits for the next line of its process.
    looped = [json.loads(process.stdout.readline()) for process in processes]  # type: ignore[union-attr]
    available, mapped = machine_memory()
    idled = [json.loads(process.stdout.readline()) for process in processes]  # type: ignore[union-attr]
    available_after, mapped_after = machine_memory()
    for process in processes:
        process.communicate("")
        assert process.returncode == 0
    found = [a | b for a, b in zip(looped, idled, strict=True)]
    return found, available_after - available, mapped_after - mapped


def test_a_steady_loop_takes_no_faults_and_all_is_back_once_it_stops() -> None:
    for _ in range(ATTEMPTS):
        found, regained, grown = idle_in_both_regimes()
        for one in found:
            assert one["faults"] < 100, found
            assert one["held"] > 500 << 20, found
            # Nothing goes before half of the decay time, and all within it.
            assert one["early"] > 0.95 * one["held"], found
            assert one["left"] < 0.05 * one["held"], found
        # RSS alone would fall as well if huge pages were only cut.
        lost = sum(one["held"] - one["left"] for one in found)
        by_others = grown + lost
        if regained + by_others >= 0.8 * lost:
            return
    raise AssertionError(
        f"RSS fell by {lost} bytes, MemAvailable grew by {regained}, others took {by_others}"
    )


@pytest.mark.parametrize("regime", machine.REGIMES)
def test_many_small_arrays_then_a_large_one_do_not_double_rss(
    run_python: Callable[..., str], monkeypatch: pytest.MonkeyPatch, regime: str
) -> None:
    """As 100,000 arrays of 20 kB and one of 2 GB do not."""
    value = machine.regime_environment(regime)["NUMPY_MADVISE_HUGEPAGE"]
    monkeypatch.setenv("NUMPY_MADVISE_HUGEPAGE", value)
    run_python(
        """
        allocator = bigmem.make("recycle")
        before = osmem.resident_bytes()
        arrays = []
        for _ in range(25_000):
            arrays.append(bigmem.empty(20_000, np.uint8, allocator=allocator))
            arrays[-1].fill(1)
        assert osmem.resident_bytes() - before > 500_000_000
        arrays.clear()
        large = bigmem.empty(500_000_000, np.uint8, allocator=allocator)
        large.fill(2)
        grown = osmem.peak_resident_bytes() - before
        assert grown < 1.25 * 500_000_000, grown
        del large
        allocator.trim()
        left = osmem.resident_bytes() - before
        assert left < 0.05 * 500_000_000, left
        assert allocator.stats().resident == 0
        """,
        prefix=PRELUDE,
    )
