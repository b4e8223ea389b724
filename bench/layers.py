"""What hides between a function's timers and its caller's, and what a layer costs.

    python -m bench.layers [--size 2GiB] [--rounds 4] [--json FILE] [--markdown FILE]

A function builds huge arrays, fills them and returns a number; a layer in it times all that it
does, a layer around it what its caller sees. The arrays are released when the function returns:
after the one timer has ended, before the other. Each page regime runs in a fresh process.
"""

import argparse
import contextlib
import json
import sys
import timeit
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import bigmem
from bench import command_line, machine
from bench.timing import make_array
from bigmem.sizes import format_size

PIECES = 8
# Of the overhead: series so short that some are never interrupted.
CALLS = 300
SERIES = 2000


def contenders() -> dict[str, bigmem.Allocator | None]:
    """Whose arrays, by name; `None` is NumPy itself."""
    return {
        "numpy": None,
        "deferred": bigmem.make("deferred"),
        "recycle": bigmem.make("recycle"),
    }


def total(allocator: bigmem.Allocator | None, nbytes: int) -> int:
    """Fill arrays of `nbytes` in all, and return a number."""
    with bigmem.layer("inside"):
        arrays = [make_array(allocator, nbytes // PIECES) for _ in range(PIECES)]
        for array in arrays:
            array.fill(1)
        return sum(int(array[-1]) for array in arrays)


def measure(allocator: bigmem.Allocator | None, nbytes: int, rounds: int) -> dict[str, Any]:
    """The tree of layers after all rounds, and its table."""
    with bigmem.record_layers() as recorded:
        for _ in range(rounds):
            with bigmem.layer("outside"):
                total(allocator, nbytes)
    return {**asdict(recorded()), "table": str(recorded())}


def measure_regime(nbytes: int, rounds: int) -> dict[str, Any]:
    """Every contender, in this process's page regime."""
    machine.warm_up(nbytes + nbytes // 4)
    results = {}
    for name, allocator in contenders().items():
        results[name] = measure(allocator, nbytes, rounds)
        if allocator is not None:
            allocator.flush()
            allocator.trim()
    return results


def run_regime(regime: str, nbytes: int, rounds: int) -> dict[str, Any]:
    """`measure_regime` in a fresh process."""
    words = ("--size", str(nbytes), "--rounds", str(rounds), "--one-regime")
    results: dict[str, Any] = machine.in_regime(regime, "bench.layers", *words)
    return results


def overhead() -> dict[str, float]:
    """Seconds that one call of a layer adds, by way of use: the best of several series."""

    def nothing() -> None:
        pass

    def block() -> None:
        with bigmem.layer("block"):
            pass

    def series(function: Callable[[], None]) -> float:
        return min(timeit.repeat(function, number=CALLS, repeat=SERIES)) / CALLS

    base = series(nothing)
    found = {
        "`with bigmem.layer(...)`": series(block) - base,
        "`@bigmem.layer(...)`": series(bigmem.layer("call")(nothing)) - base,
    }
    with contextlib.closing(bigmem.Traced(bigmem.SystemAllocator(), max_bytes="256MiB")):
        found["the first, while a `Traced` logs it"] = series(block) - base
    return found


def rows(by_regime: dict[str, Any]) -> list[list[str]]:
    """The head, then a row for each contender in each regime; times in seconds."""
    table = [["pages", "arrays", "outside", "inside", "gap", "gap %"]]
    for regime, results in by_regime.items():
        for name, found in results.items():
            (outside,) = found["layers"]
            seconds = (f"{outside[key]:.3f}" for key in ("wall_s", "inner_s", "gap_s"))
            table.append([regime, name, *seconds, f"{outside['share']:.1%}"])
    return table


def markdown(content: dict[str, Any]) -> str:
    """What docs/layers.md shows."""
    by_regime = content["results"]
    first = machine.REGIMES[0]
    size, rounds = format_size(content["size"]), content["rounds"]
    costs = [["way of use", "us a call"]]
    costs += [[name, f"{1e6 * seconds:.2f}"] for name, seconds in content["overhead_s"].items()]
    lines = [
        f"NumPy's arrays, {first} pages, {size} a call:",
        "",
        "```",
        by_regime[first]["numpy"]["table"],
        "```",
        "",
        f"The same for other arrays and pages, seconds of {rounds} calls:",
        "",
        *machine.markdown_table(rows(by_regime), names=2),
        "",
        "What a layer itself costs:",
        "",
        *machine.markdown_table(costs),
        "",
        f"Machine: {machine.summary()}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure both regimes; print what the page shows."""
    parser = argparse.ArgumentParser(prog="python -m bench.layers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--size",
        type=command_line.at_least(PIECES, command_line.memory),
        default="2GiB",
        help="of the arrays of a call (default 2GiB)",
    )
    parser.add_argument(
        "--rounds", type=command_line.count, default=4, help="calls of each kind (default 4)"
    )
    command_line.add_result_options(parser)
    parser.add_argument("--one-regime", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = arguments.size
    if arguments.one_regime:
        json.dump(measure_regime(size, arguments.rounds), sys.stdout)
        return
    content = {
        "size": size,
        "rounds": arguments.rounds,
        "results": {r: run_regime(r, size, arguments.rounds) for r in machine.REGIMES},
        "overhead_s": overhead(),
    }
    page = markdown(content)
    print(page, end="")
    command_line.write_results(arguments, content, page)


if __name__ == "__main__":
    main()
