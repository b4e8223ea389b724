"""What memory costs on this machine, as a table for docs/explanation.md.

    python -m bench.costs [--json FILE] [--markdown FILE]

The figures are those of `bigmem doctor`, processor time of one thread: half a minute at most.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

from bench import command_line, machine

ROWS = {
    "the first fill of fresh memory, beyond the writing": "first_touch_ms",
    "a fill of memory that is there": "warm_fill_ms",
    "`MADV_DONTNEED`": "dontneed_ms",
    "`MADV_FREE`": "free_ms",
    "a fill after `MADV_FREE`": "refill_ms",
    "`munmap`": "munmap_ms",
    "`del` of an array of NumPy's": "numpy_free_ms",
}


def measure() -> dict[str, Any]:
    """What the doctor says, in a process of its own."""
    command = [sys.executable, "-m", "bigmem", "doctor", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, Any] = json.loads(done.stdout)["measured"]
    return measured


def figure(costs: dict[str, Any] | None, key: str) -> str:
    """One cost in ms per GiB, or a dash where it could not be measured."""
    return "-" if costs is None or costs[key] is None else f"{costs[key]:.3g}"


def markdown(measured: dict[str, Any]) -> str:
    """What docs/explanation.md shows."""
    table = [["ms per GiB", "4 KiB pages", "2 MiB pages"]]
    for row, key in ROWS.items():
        table.append([row, *(figure(measured[regime], key) for regime in ("small", "huge"))])
    lines = [*machine.markdown_table(table), "", f"Machine: {machine.summary()}.", ""]
    return "\n".join(lines)


def main() -> None:
    """Measure, and print what the page shows."""
    parser = argparse.ArgumentParser(prog="python -m bench.costs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    command_line.add_result_options(parser)
    arguments = parser.parse_args()
    measured = measure()
    page = markdown(measured)
    print(page, end="")
    command_line.write_results(arguments, {"measured": measured}, page)


if __name__ == "__main__":
    main()
