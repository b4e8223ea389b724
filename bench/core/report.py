"""All figures as Markdown, and which of the promised values they reach."""

from collections.abc import Mapping
from typing import Any

from bench import machine
from bench.core.figure import Figure, Results
from bench.core.quiet import MUNMAP, TRIM

All = Mapping[str, Mapping[str, Results]]
"""Results by figure and by page regime."""


def targets(results: All) -> list[list[str]]:
    """What was promised, what was measured, and whether it is reached, by page regime."""
    rows = [["", "pages", "promised", "measured", ""]]
    for regime in machine.REGIMES:

        def add(what: str, most: float, value: float, unit: str, *, least: bool = False) -> None:
            met = value >= most if least else value <= most
            bound = f"{'at least' if least else 'at most'} {most:g}{unit}"
            row = [what, regime, bound, f"{value:.3g}{unit}", "yes" if met else "**no**"]  # noqa: B023
            rows.append(row)

        found = {name: by_regime[regime] for name, by_regime in results.items()}
        if "release" in found:
            for name in ("deferred", "recycle"):
                worst = max(one["p99_s"] for one in found["release"][name]["sizes"].values())
                add(f"release, {name}: p99 of any size", 20, worst * 1e6, " us")
        if "allocate" in found:
            worst = max(one["p50_s"] for one in found["allocate"]["recycle"]["sizes"].values())
            add("warm allocation: p50 of any size", 10, worst * 1e6, " us")
        if "steps" in found:
            one = found["steps"]["recycle"]
            add("step loop, recycle: time against out=", 1.1, one["step_s"] / one["out_s"], "")
            add("step loop, recycle: faults an iteration", 100, one["faults"], "")
            add("idle, recycle: came back", 95, 100 * one["returned"], " %", least=True)
        if "quiet" in found:
            whole = found["quiet"][MUNMAP.name]["longest_wait_s"]
            for name in ("deferred", TRIM.name):
                one = found["quiet"][name]
                kept = one["beside_bytes_per_s"] / one["alone_bytes_per_s"]
                # Promised of 4 KiB pages: huge ones go back before anyone waits long for them.
                if regime == machine.REGIMES[0]:
                    add(f"{name}: speed of faulting kept", 80, 100 * kept, " %", least=True)
                    wait = one["longest_wait_s"]
                    add(f"{name}: longest wait", 30, wait * 1e3, " ms")
                    add(f"{name}: longest wait against munmap", 0.33, wait / whole, "")
        if "fork" in found:
            one = found["fork"]["recycle"]
            first, later = one["first_s"] / one["before_s"], one["after_s"] / one["before_s"]
            add("step loop, recycle: first step after a fork against before", 1.2, first, "")
            add("step loop, recycle: later steps after a fork against before", 1.2, later, "")
        if "exit" in found:
            numpy = found["exit"]["numpy, live"]["exit_s"]
            for name, one in found["exit"].items():
                if not name.startswith("numpy"):
                    add(f"exit, {name}: against numpy", 1.1, one["exit_s"] / numpy, "")
    return rows


def section(figure: Figure, by_regime: Mapping[str, Results]) -> list[str]:
    """One figure's lines: a table for each page regime."""
    lines = [f"## {figure.title}", "", figure.reading, ""]
    for regime, results in by_regime.items():
        lines += [f"**{regime} pages**", "", *machine.markdown_table(figure.rows(results)), ""]
        if figure.finding:
            lines += [figure.finding(results), ""]
    return lines


def markdown(figures: Mapping[str, Figure], content: Mapping[str, Any]) -> str:
    """The page that docs/ holds."""
    results: All = content["figures"]
    lines = [
        "# Figures of the allocator core",
        "",
        "Written by `make bench-core`; every contender runs in a process of its own, in both page "
        "regimes. Compare figures of one table: other machines have other speeds.",
        "",
        f"Machine: {machine.summary()}. It had {content['available_bytes'] / machine.GIB:.1f} GiB "
        f"available, of which the bench may use {content['memory_bytes'] / machine.GIB:.1f}.",
        "",
        "## What was promised",
        "",
        *machine.markdown_table(targets(results), names=4),
        "",
    ]
    for name, by_regime in results.items():
        lines += section(figures[name], by_regime)
    return "\n".join(lines)
