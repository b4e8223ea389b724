"""The array panel: a step loop in which memory dominates, under one allocator, in one process.

    python -m bench.panel --allocator recycle [--gib 1.5] [--steps 4]

A step makes two arrays, fills them, adds them into a third and drops all three: what an image
stack, a simulation step or a dataframe expression does. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

import numpy as np

import bigmem
from bench import command_line
from bench.machine import GIB
from prover.pipeline.usage import Meter


def step(length: int, allocator: bigmem.Allocator, seed: float) -> float:
    """One step over three arrays of `length` doubles; returns a value that proves the work."""
    a = bigmem.full(length, seed, allocator=allocator)
    b = bigmem.full(length, 2.0, allocator=allocator)
    total = bigmem.empty(length, allocator=allocator)
    np.add(a, b, out=total)
    return float(total[length // 2])


def run(name: str, gib: float, steps: int) -> dict[str, object]:
    """Run the loop under the named allocator and measure it."""
    allocator = bigmem.make(name)
    length = max(1, int(gib * GIB) // (3 * np.dtype(np.float64).itemsize))
    step(1 << 16, allocator, 0.0)  # first imports and first reservation are not the loop's
    meter = Meter(allocator)
    for i in range(steps):
        value = step(length, allocator, float(i))
        if value != i + 2.0:
            raise AssertionError(f"step {i} computed {value}, not {i + 2.0}")
    usage = meter.stop()
    return {"allocator": name, "gib": gib, "steps": steps, **asdict(usage)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--allocator", required=True)
    parser.add_argument(
        "--gib", type=command_line.gib, default=1.5, help="bytes of arrays in a step"
    )
    parser.add_argument("--steps", type=command_line.count, default=4)
    args = parser.parse_args()
    try:
        json.dump(run(args.allocator, args.gib, args.steps), sys.stdout)
    except bigmem.BigmemError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
