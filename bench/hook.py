"""What the NumPy hook costs the arrays that it does not serve, and gains those that it does.

    python -m bench.hook [--json FILE] [--markdown FILE]

Each question is put with `install()` and after `uninstall()`, by turns in one process, and in
another process that never installed anything; three of each, by turns. Of the rounds the fastest
counts: whatever else the machine does, and whichever way the heap lies, only adds.

* one array: `np.empty` of several lengths, in doubles, and its `del`, untouched;
* many: an arithmetic pipeline over tiny arrays, 1e7 of them unless told otherwise;
* growth: `resize` from 256 MiB to 384 MiB, `fromiter`, and a text parse.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

import bigmem
from bench import command_line, machine

LENGTHS = (10, 1_000, 20_000, 1 << 17, 1 << 20, 1 << 23)
ROUNDS = 7
PROCESSES = 3
CALLS = 20_000
ARRAYS_A_TURN = 4
TINY_PART = 10
"""Of the tiny arrays asked for, this part is made."""
Seconds = dict[str, float]


def empty(length: int) -> float:
    """Seconds for `np.empty(length)` and for letting it go, at its best of a round."""
    calls = CALLS if length <= 20_000 else max(20, CALLS * 10_000 // length)
    start = time.perf_counter()
    for _ in range(calls):
        np.empty(length)
    return (time.perf_counter() - start) / calls


def tiny(arrays: int) -> float:
    """Seconds for a pipeline that makes so many arrays of ten doubles, at the pace of a tenth."""
    left, right = np.arange(10.0), np.arange(10.0)[::-1].copy()
    start = time.perf_counter()
    for _ in range(arrays // (ARRAYS_A_TURN * TINY_PART)):
        total = left + right
        scaled = total * 2.0
        shifted = scaled - left
        left = shifted / shifted
    return TINY_PART * (time.perf_counter() - start)


def resize() -> float:
    """Seconds for growing a touched array by half."""
    array = np.ones(256 << 20, np.uint8)
    start = time.perf_counter()
    array.resize(384 << 20, refcheck=False)
    return time.perf_counter() - start


def fromiter() -> float:
    """Seconds for an array of unknown length from an iterator."""
    start = time.perf_counter()
    np.fromiter(iter(range(2_000_000)), np.float64)
    return time.perf_counter() - start


def parse() -> float:
    """Seconds for an array of unknown length from text."""
    text = "3.25 " * 1_000_000
    start = time.perf_counter()
    np.fromstring(text, sep=" ")
    return time.perf_counter() - start


def questions(arrays: int) -> dict[str, Callable[[], float]]:
    """What is measured, by name."""
    each: dict[str, Callable[[], float]] = {
        f"empty({length:,})": lambda n=length: empty(n)  # type: ignore[misc]
        for length in LENGTHS
    }
    each[f"{arrays:,} tiny arrays"] = lambda: tiny(arrays)
    each.update({"resize": resize, "fromiter": fromiter, "fromstring": parse})
    return each


def alternate(arrays: int, allocator: bigmem.Allocator) -> dict[str, Seconds]:
    """Every question, without and with the hook by turns."""
    found: dict[str, Seconds] = {}
    for name, question in questions(arrays).items():
        off: list[float] = []
        on: list[float] = []
        for turn in range(ROUNDS):
            for installed in (True, False) if turn % 2 else (False, True):
                if installed:
                    bigmem.install(allocator)
                (on if installed else off).append(question())
                bigmem.uninstall()
        found[name] = {"off": min(off), "on": min(on)}
    return found


def before(arrays: int) -> dict[str, Seconds]:
    """The same in a process where nothing was ever installed."""
    return {
        name: {"before": min(question() for _ in range(ROUNDS))}
        for name, question in questions(arrays).items()
    }


def measure(arrays: int, regime: str) -> dict[str, Seconds]:
    """Every question in fresh processes of one page regime."""
    found: dict[str, Seconds] = {}
    for part in ("before", "hook") * PROCESSES:
        words = ("--part", part, "--arrays", str(arrays))
        for name, seconds in machine.in_regime(regime, "bench.hook", *words).items():
            best = found.setdefault(name, {})
            for way, value in seconds.items():
                best[way] = min(best.get(way, value), value)
    return found


def table(found: dict[str, Seconds]) -> list[list[str]]:
    """Microseconds and the ratio that matters."""
    rows = [["", "never installed, us", "uninstalled, us", "installed, us", "installed / never"]]
    for name, seconds in found.items():
        rows.append(
            [
                name,
                *(f"{seconds[key] * 1e6:,.4g}" for key in ("before", "off", "on")),
                f"{seconds['on'] / seconds['before']:.2f}",
            ]
        )
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--arrays",
        type=command_line.at_least(ARRAYS_A_TURN * TINY_PART),
        default=10_000_000,
        help="tiny ones",
    )
    parser.add_argument("--allocator", default="recycle")
    command_line.add_result_options(parser)
    parser.add_argument("--part", choices=("before", "hook"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        bigmem.make(options.allocator)
    except bigmem.BigmemError as error:
        parser.error(str(error))
    if options.part is not None:
        if options.part == "before":
            print(json.dumps(before(options.arrays)))
        else:
            print(json.dumps(alternate(options.arrays, bigmem.make(options.allocator))))
        return
    machine.warm_up(1 << 30)
    found = {regime: measure(options.arrays, regime) for regime in machine.REGIMES}
    page = machine.markdown_page({f"{regime} pages": table(one) for regime, one in found.items()})
    print(page, end="")
    command_line.write_results(options, {"allocator": options.allocator, "seconds": found}, page)


if __name__ == "__main__":
    main()
