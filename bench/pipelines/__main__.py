"""Unmodified programs, run by Python and by `bigmem run`, in turns.

    python -m bench.pipelines [--rounds 5] [--json FILE] [--markdown FILE]

Each program prints what it found; all runs of it must print the same.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench import command_line, machine

PROGRAMS = ("image_stack", "spectrum", "dataframe")
WAYS = ("python", "system", "mapped", "deferred", "recycle")
Run = dict[str, float]


def run(program: str, way: str, regime: str) -> tuple[str, Run]:
    """What one run printed, and what it took."""
    script = str(Path(__file__).parent / f"{program}.py")
    hook = [] if way == "python" else ["-m", "bigmem", "run", "--allocator", way]
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *hook, script],
        env=machine.regime_environment(regime),
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        printed = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if child.returncode:
        raise SystemExit(f"{program} under {way} ended with {child.returncode}")
    return printed, {
        "wall_s": wall,
        "system_s": usage.ru_stime,
        "minor_faults": usage.ru_minflt,
        "peak_mib": usage.ru_maxrss / 1024,
    }


def measure(program: str, regime: str, rounds: int) -> dict[str, Run]:
    """Medians over the rounds, by way."""
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    printed = set()
    for turn in range(rounds):
        for way in WAYS if turn % 2 else reversed(WAYS):
            text, figures = run(program, way, regime)
            printed.add(text)
            runs[way].append(figures)
    if len(printed) != 1:
        raise SystemExit(f"{program} printed different results: {sorted(printed)}")
    return {
        way: {key: statistics.median(run[key] for run in done) for key in done[0]}
        for way, done in runs.items()
    }


def table(found: dict[str, dict[str, dict[str, Run]]]) -> list[str]:
    """A row a program, regime and way."""
    head = ["program", "pages", "run by", "wall, s", "ratio", "in the kernel, s", "faults"]
    rows = [[*head, "peak, MiB"]]
    for program, regimes in found.items():
        for regime, ways in regimes.items():
            for way, figures in ways.items():
                rows.append(
                    [
                        program,
                        regime,
                        way if way == "python" else f"bigmem run, {way}",
                        f"{figures['wall_s']:.2f}",
                        f"{figures['wall_s'] / ways['python']['wall_s']:.2f}",
                        f"{figures['system_s']:.2f}",
                        f"{figures['minor_faults']:,.0f}",
                        f"{figures['peak_mib']:,.0f}",
                    ]
                )
    return machine.markdown_table(rows, names=3)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=command_line.count, default=5)
    command_line.add_result_options(parser)
    options = parser.parse_args()
    machine.warm_up_beside(2 << 30)
    found: dict[str, dict[str, dict[str, Run]]] = {}
    for program in PROGRAMS:
        for regime in machine.REGIMES:
            found.setdefault(program, {})[regime] = measure(program, regime, options.rounds)
            print(f"{program}, {regime} pages: measured", file=sys.stderr, flush=True)
    page = "\n".join([*table(found), "", f"Machine: {machine.summary()}.", ""])
    print(page, end="")
    command_line.write_results(options, {"found": found}, page)


if __name__ == "__main__":
    main()
