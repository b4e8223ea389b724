"""What `bigmem profile` costs the program: its wall time with and without, in one run.

    python -m bench.profile_overhead [--mib 1 4 32 256] [--rounds 5] [--markdown FILE]

The pipeline makes three arrays a step and drops them. Both kinds of runs alternate, each in a
process of its own, which times its own steps; a ratio is that of the medians. On a busy machine
the ratio of the processor's time tells more than that of the wall time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from bench.machine import MIB, REGIMES, markdown_table, regime_environment, summary, warm_up

_WARM_UP = 1 << 30


def pipeline(mib: float, seconds: float) -> tuple[float, float]:
    """Seconds of a step of three arrays of `mib` MiB by the clock and by the processor.

    It is repeated for about so many seconds.
    """
    length = int(mib * MIB) // 8
    a = np.ones(length)
    steps, spent, used, batch = 0, 0.0, 0.0, 1
    while spent < seconds:
        start = time.perf_counter(), time.thread_time()
        for _ in range(batch):
            scaled = a * 2.0
            shifted = scaled + a
            total = np.empty(length)
            np.subtract(shifted, scaled, out=total)
            del scaled, shifted, total
        spent += time.perf_counter() - start[0]
        used += time.thread_time() - start[1]
        steps += batch
        batch *= 2
    return spent / steps, used / steps


def measure(mib: float, regime: str, rounds: int, seconds: float) -> list[list[float]]:
    """Wall and processor time of a step without and with the profiler: medians of many runs."""
    program = ["-m", "bench.profile_overhead", "--child", str(mib), str(seconds)]
    commands: tuple[list[str], ...] = ([], ["-m", "bigmem", "profile"])
    times: tuple[list[list[float]], ...] = ([], [])
    for _ in range(rounds):
        for command, found in zip(commands, times, strict=True):
            done = subprocess.run(
                [sys.executable, *command, *program],
                env=regime_environment(regime),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=True,
            )
            found.append([float(word) for word in done.stdout.split()])
    return [[median(values) for values in zip(*found, strict=True)] for found in times]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mib", type=float, nargs="+", default=[1, 4, 32, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--child", type=float, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(*pipeline(*args.child))
        return 0
    warm_up(_WARM_UP)
    rows = [["pages", "MiB an array", "plain ms", "profiled ms", "ratio", "processor's ratio"]]
    for regime in REGIMES:
        for mib in args.mib:
            plain, profiled = measure(mib, regime, args.rounds, args.seconds)
            ratios = (f"{b / a:.3f}" for a, b in zip(plain, profiled, strict=True))
            shown = (f"{plain[0] * 1e3:.3f}", f"{profiled[0] * 1e3:.3f}")
            rows.append([regime, f"{mib:g}", *shown, *ratios])
            print(*rows[-1], sep="\t", flush=True)
    if args.markdown:
        lines = [*markdown_table(rows), "", summary()]
        args.markdown.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
