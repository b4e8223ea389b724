"""What `bigmem profile` costs the program: its wall time with and without, in one run.

    python -m bench.profile_overhead [--mib 1 4 32] [--rounds 5] [--markdown FILE]

The pipeline makes three arrays a step and drops them. Both kinds of runs alternate, each in a
process of its own, which times its own steps in batches. Of the batches the fastest counts, of the
runs the fastest too: whatever else the machine does only adds. The C library is told to map every
array anew, or to keep all memory: left to itself it does now this and now that, for reasons as
slight as the profiler's own allocations.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product

import numpy as np

from bench.command_line import Distinct, amount, count, mib, result_file, write
from bench.machine import MIB, REGIMES, markdown_table, regime_environment, summary, warm_up

# What a batch writes at least, so that the clock does not count.
_BATCH_BYTES = 64 * MIB
# And at most: of small arrays so many take some milliseconds.
_MOST_STEPS = 4096
_WARM_UP = 1 << 30
_LIBRARY = {
    "fresh": {"MALLOC_MMAP_THRESHOLD_": str(1 << 17)},
    "kept": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)},
}


def pipeline(mib: float, seconds: float) -> float:
    """Seconds of a step of three arrays of `mib` MiB, at its best within so many seconds."""
    length = int(mib * MIB) // 8
    a = np.ones(length)
    batch = max(1, min(_MOST_STEPS, round(_BATCH_BYTES / (3 * mib * MIB))))
    end = time.perf_counter() + seconds
    best = float("inf")
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        for _ in range(batch):
            scaled = a * 2.0
            shifted = scaled + a
            total = np.empty(length)
            np.subtract(shifted, scaled, out=total)
            del scaled, shifted, total
        best = min(best, (time.perf_counter() - start) / batch)
    return best


def measure(
    mib: float, environment: dict[str, str], rounds: int, seconds: float
) -> tuple[float, float]:
    """Seconds of a step without and with the profiler, at its best of runs that alternate."""
    program = ["-m", "bench.profile_overhead", "--child", str(mib), str(seconds)]
    commands: tuple[list[str], ...] = ([], ["-m", "bigmem", "profile"])
    best = [float("inf")] * len(commands)
    for _ in range(rounds):
        for i, command in enumerate(commands):
            done = subprocess.run(
                [sys.executable, *command, *program],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=True,
            )
            best[i] = min(best[i], float(done.stdout))
    return best[0], best[1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mib", type=mib, nargs="+", action=Distinct, default=[1, 4, 32])
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--seconds", type=amount, default=0.5, help="of each run")
    parser.add_argument("--markdown", type=result_file, metavar="FILE")
    parser.add_argument("--child", type=float, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(pipeline(*args.child))
        return 0
    warm_up(_WARM_UP)
    rows = [["pages", "memory", "MiB an array", "plain, ms", "profiled, ms", "ratio"]]
    for regime, memory, size in product(REGIMES, _LIBRARY, args.mib):
        environment = {**regime_environment(regime), **_LIBRARY[memory]}
        plain, profiled = measure(size, environment, args.rounds, args.seconds)
        figures = (f"{plain * 1e3:.3f}", f"{profiled * 1e3:.3f}", f"{profiled / plain:.3f}")
        rows.append([regime, memory, f"{size:g}", *figures])
        print(*rows[-1], sep="\t", flush=True)
    if args.markdown:
        lines = [*markdown_table(rows, names=2), "", summary()]
        write(args.markdown, "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
