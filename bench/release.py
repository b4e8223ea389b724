"""What releasing an array costs its thread, and every other thread meanwhile.

    python -m bench.release [--size 4GiB] [--json FILE] [--markdown FILE]

For NumPy and for each allocator, in both page regimes, each regime in a fresh process:

* the caller's time for the `del` of one array of the given size, and the biggest gap that another
  Python thread saw until the memory was back with the system (or warm);
* p50 and p99 of the caller's time for releases of several sizes;
* p50 of an allocation, and the time of its first fill, fresh and after a release.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from typing import Any

import numpy as np

import bigmem
from bench import command_line, machine
from bench.timing import make_array, milliseconds, timed
from bigmem.sizes import format_size, parse_size

SIZES = ("1MiB", "16MiB", "256MiB")
# Bytes that the repeated releases of one size touch in all.
TOUCHED_PER_SIZE = 1 << 30
REPEATS = 3
# Fills are of so small a part of the large array.
FILLED_PART = 4


def subjects() -> dict[str, bigmem.Allocator | None]:
    """What is compared, by name; `None` is NumPy itself."""
    return {
        "numpy": None,
        "mapped": bigmem.make("mapped"),
        "mapped, deferred": bigmem.MappedAllocator(release=bigmem.Deferred()),
        "dontneed": bigmem.make("dontneed"),
        "deferred": bigmem.make("deferred"),
        "recycle": bigmem.make("recycle"),
    }


class Watcher:
    """A thread that wakes every 0.2 ms and remembers its longest wait."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._stop = False
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        last = time.perf_counter()
        while not self._stop:
            time.sleep(0.0002)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last)
            last = now

    def __enter__(self) -> "Watcher":
        self._thread.start()
        time.sleep(0.01)
        self.longest = 0.0
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop = True
        self._thread.join()


def release_seconds(allocator: bigmem.Allocator | None, nbytes: int) -> float:
    """The caller's time for releasing one touched array."""
    held = [make_array(allocator, nbytes)]
    held[0][::4096] = 1
    return timed(held.clear)


def measure_one_large(allocator: bigmem.Allocator | None, nbytes: int) -> dict[str, float]:
    """Release of one large array: the caller's time, and the gap of another thread."""
    callers, gaps = [], []
    for _ in range(REPEATS):
        callers.append(release_seconds(allocator, nbytes))
        if allocator is not None:
            allocator.flush()
        held = [make_array(allocator, nbytes)]
        held[0][::4096] = 1
        with Watcher() as watcher:
            held.clear()
            while allocator is not None and allocator.stats().pending:
                time.sleep(0.002)
        gaps.append(watcher.longest)
    return {"caller_s": statistics.median(callers), "gap_s": statistics.median(gaps)}


def measure_sizes(allocator: bigmem.Allocator | None) -> dict[str, dict[str, float]]:
    """p50 and p99 of releases, and p50 of allocations, for several sizes."""
    found = {}
    for size in SIZES:
        nbytes = parse_size(size)
        allocations, releases = [], []
        for _ in range(max(4, min(300, TOUCHED_PER_SIZE // nbytes))):
            start = time.perf_counter()
            held = [make_array(allocator, nbytes)]
            allocations.append(time.perf_counter() - start)
            held[0][::4096] = 1
            releases.append(timed(held.clear))
        found[size] = {
            "allocate_p50_s": statistics.median(allocations),
            "release_p50_s": statistics.median(releases),
            "release_p99_s": float(np.percentile(releases, 99)),
        }
        if allocator is not None:
            allocator.flush()
            allocator.trim()
    return found


def measure_fills(allocator: bigmem.Allocator | None, nbytes: int) -> dict[str, float]:
    """Time of the first fill of an array: fresh, and right after another one was released."""
    array = make_array(allocator, nbytes)
    fresh = timed(lambda: array.fill(1))
    del array
    array = make_array(allocator, nbytes)
    again = timed(lambda: array.fill(1))
    return {"fresh_fill_s": fresh, "refill_s": again}


def measure_regime(size: int) -> dict[str, Any]:
    """Everything, in this process's page regime."""
    machine.warm_up(size + size // 4)
    results = {}
    for name, allocator in subjects().items():
        results[name] = {
            "fill": measure_fills(allocator, size // FILLED_PART),
            "large": measure_one_large(allocator, size),
            "sizes": measure_sizes(allocator),
        }
        if allocator is not None:
            allocator.flush()
            allocator.trim()
            allocator.close()
    return results


def run_regime(regime: str, size: int) -> dict[str, Any]:
    """`measure_regime` in a fresh process."""
    words = ("--size", str(size), "--one-regime")
    results: dict[str, Any] = machine.in_regime(regime, "bench.release", *words)
    return results


def table(size: int, results: dict[str, Any]) -> list[list[str]]:
    """The head, then one row an allocator; all times in ms."""
    middle = SIZES[1]
    heads = [
        "ms",
        f"del of {format_size(size)}",
        "gap elsewhere",
        *(f"del {s} p50/p99" for s in SIZES),
        f"empty {middle}",
        f"fill {format_size(size // FILLED_PART)} fresh/again",
    ]
    rows = [heads]
    for name, found in results.items():
        sizes = found["sizes"]
        rows.append(
            [
                name,
                milliseconds(found["large"]["caller_s"]),
                milliseconds(found["large"]["gap_s"]),
                *(
                    milliseconds(sizes[s]["release_p50_s"])
                    + " / "
                    + milliseconds(sizes[s]["release_p99_s"])
                    for s in SIZES
                ),
                milliseconds(sizes[middle]["allocate_p50_s"]),
                milliseconds(found["fill"]["fresh_fill_s"])
                + " / "
                + milliseconds(found["fill"]["refill_s"]),
            ]
        )
    return rows


def print_table(regime: str, rows: list[list[str]]) -> None:
    """Print one regime's rows."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print(f"\n{regime}")
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def main() -> None:
    """Measure both regimes, print a table each."""
    parser = argparse.ArgumentParser(prog="python -m bench.release", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--size",
        type=command_line.at_least(FILLED_PART, command_line.memory),
        default="4GiB",
        help="of the large array (default 4GiB)",
    )
    command_line.add_result_options(parser)
    parser.add_argument("--one-regime", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = arguments.size
    if arguments.one_regime:
        json.dump(measure_regime(size), sys.stdout)
        return
    results = {f"{regime} pages": run_regime(regime, size) for regime in machine.REGIMES}
    tables = {regime: table(size, found) for regime, found in results.items()}
    for regime, rows in tables.items():
        print_table(regime, rows)
    figures = {"size": size, "results": results}
    command_line.write_results(arguments, figures, machine.markdown_page(tables))


if __name__ == "__main__":
    main()
