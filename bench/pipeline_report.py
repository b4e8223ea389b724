"""The comparison's runs as JSON, as Markdown and as pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine, pipeline_pictures
from bench.pipeline_cells import BASELINE, POLICIES, Cell, circuits_of
from bench.pipeline_journal import Run
from bigmem.cli import _outputs

FIGURES = ("wall_s", "p50_s", "p99_s", "tax_s", "gap_s", "gap_of_inner", "minor_faults",
           "peak_rss_bytes", "held_bytes", "reclaim_s", "reclaim_cpu_s", "map_s", "fault_s",
           "release_s", "inner_s", "outer_s", "gap_map_s", "gap_release_s", "gap_fault_s",
           "gap_wait_s", "unexplained_s", "synthesis_s", "device_s", "huge_bytes", "prefault_s",
           "flush_s")  # fmt: skip

COLUMNS = ("pages", "policy", "wall s", "against inline", "p50 ms", "p99 ms", "tax s", "gap ms",
           "gap / inner", "faults", "peak MiB", "held MiB", "reclaim s")  # fmt: skip

READING = (
    "Medians of the runs, with the least and the most in brackets; *against inline* is taken in "
    "each round by itself, with the run of inline of the same sitting. p50, p99: of a circuit, "
    "from the moment that it is taken until its memory is let go of (of few proofs, p99 is the "
    "slowest). tax: seconds of the program's own threads, added up over them, in allocations, in "
    "the kernel (page faults above all), and in releases. gap: what the outer timer of the proofs "
    "measures and the inner one does not. peak: of the resident set. held: the most that the "
    "assignments took, with what was released and not given back yet, and what was kept warm. "
    "reclaim: seconds in which memory was given back by other threads than the one that let go of "
    "it."
)

_ENOUGH_RUNS = 5

Summary = Mapping[str, Any]


def summarize(
    settings: Mapping[str, Any],
    runs: Mapping[Cell, Mapping[tuple[int, int], Run]],
    refusals: Mapping[str, str],
    failed: Sequence[tuple[Cell, int, Run]] = (),
) -> dict[str, Any]:
    """The comparison as it is written to JSON.

    Parameters
    ----------
    settings
        What the runs have in common, the machine among it.
    runs
        By cell, then by round and sitting. Those of the same are compared.
    refusals
        Why policies were not run, by name.
    failed
        Every run that failed, with its cell and round. Of those that were made again, a wrong proof
        is a failure all the same.
    """
    good = {
        cell: {key: run for key, run in of.items() if "error" not in run}
        for cell, of in runs.items()
    }
    failures: list[str] = []
    again: list[str] = []
    for cell, number, run in failed:
        if cell in runs:
            made = any(n == number and sitting >= run["sitting"] for n, sitting in good[cell])
            told = again if made and not run.get("wrong_proof") else failures
            told.append(f"{_title(cell)}, round {number + 1}: {run['error']}")
    entries: list[dict[str, Any]] = []
    for cell, of in runs.items():
        entry: dict[str, Any] = {**vars(cell)}
        if cell.policy in refusals:
            entry["not_run"] = refusals[cell.policy]
        elif not good[cell]:
            entry["not_run"] = "failed" if of else "not run yet"
        else:
            entry |= _summary(good[cell], good.get(cell.baseline, {}))
        entries.append(entry)
    return {
        **settings,
        "cells": entries,
        "failures": list(dict.fromkeys(failures)),
        "made_again": list(dict.fromkeys(again)),
    }


def _summary(
    good: Mapping[tuple[int, int], Run], base: Mapping[tuple[int, int], Run]
) -> dict[str, Any]:
    """Of each round the newest run that can be compared; all rounds' where none can."""
    compared = [key for key in good if key in base]
    newest = {number: (number, sitting) for number, sitting in sorted(compared or good)}
    shown = [good[key] for key in newest.values()]
    walls = [run["wall_s"] for run in shown]
    beside = [base[key]["wall_s"] for key in newest.values()] if compared else []
    ratios = [wall / other for wall, other in zip(walls, beside, strict=False)]
    middle = sorted(shown, key=lambda run: float(run["wall_s"]))[len(shown) // 2]
    return {
        "runs": len(shown),
        "walls_s": [round(wall, 4) for wall in walls],
        "rounds": list(newest),
        "sittings": [sitting for _, sitting in newest.values()],
        **{name: _spread([run[name] for run in shown]) for name in FIGURES},
        "baseline_wall_s": _spread(beside) if compared else None,
        "against": _spread(ratios) if compared else None,
        "budget_bytes": middle["budget_bytes"],
        "owners": middle["owners"],
        "layers": {
            name: median(run["layers"].get(name, 0.0) for run in shown) for name in middle["layers"]
        },
        "resident": middle["resident"],
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def _title(cell: Cell) -> str:
    return f"2^{cell.log2} {cell.mode}, {cell.policy}, {cell.regime} pages"


def markdown(results: Mapping[str, Any]) -> str:
    """A table for each size and mode, with what follows from it, and the machine."""
    entries = results["cells"]
    lines = []
    for log2, mode in dict.fromkeys((entry["log2"], entry["mode"]) for entry in entries):
        here = [entry for entry in entries if (entry["log2"], entry["mode"]) == (log2, mode)]
        here.sort(key=lambda entry: machine.REGIMES.index(entry["regime"]))
        rows = [COLUMNS, *(cells(entry) for entry in here)]
        budget = max((entry.get("budget_bytes", 0) for entry in here), default=0)
        title = f"{circuits_of(results['circuits'], log2)}, {mode} mode"
        if budget:
            title += f", of which {budget / machine.MIB:,.0f} MiB may be held"
        lines += [f"**{title}**", "", *machine.markdown_table(rows, names=2), ""]
        lines += [*(f"* {sentence}" for sentence in findings(here)), ""]
    lines += [READING, "", f"{_described(results)}.", ""]
    lines += [f"* **failed** {failure}" for failure in results["failures"]]
    lines += [f"* **made again** {failure}" for failure in results.get("made_again", ())]
    return "\n".join(lines).rstrip() + "\n"


def cells(entry: Summary) -> tuple[str, ...]:
    """A cell as the strings of `COLUMNS`."""
    names = (entry["regime"], entry["policy"])
    if "not_run" in entry:
        return (*names, entry["not_run"], *["-"] * (len(COLUMNS) - 3))

    def middle(name: str) -> float:
        return float(entry[name]["median"])

    return (
        *names,
        _range(entry["wall_s"], ".2f"),
        _range(entry["against"], ".2f") if entry["against"] else "-",
        f"{middle('p50_s') * 1e3:.0f}",
        f"{middle('p99_s') * 1e3:.0f}",
        f"{middle('tax_s'):.2f}",
        f"{middle('gap_s') * 1e3:.1f}",
        f"{middle('gap_of_inner'):.2%}",
        f"{middle('minor_faults'):,.0f}",
        f"{middle('peak_rss_bytes') / machine.MIB:,.0f}",
        f"{middle('held_bytes') / machine.MIB:,.0f}",
        f"{middle('reclaim_s'):.2f}",
    )


def _range(spread: Mapping[str, float], form: str) -> str:
    return f"{spread['median']:{form}} ({spread['min']:{form}}-{spread['max']:{form}})"


def findings(entries: list[Summary]) -> list[str]:
    """Whether any policy gained against the baseline, sentences for each page regime.

    Among a dozen policies one is always ahead. A gain is only what noise would hardly bring about:
    the slowest of five runs is faster than the fastest of the five of the baseline that they are
    compared with. A policy that took longer did so by the same rule. What pays before the clock
    starts is told apart.
    """
    sentences = []
    for regime in machine.REGIMES:
        measured = [
            entry
            for entry in entries
            if entry["regime"] == regime and entry.get("against") and entry["policy"] != BASELINE
        ]
        within = [entry for entry in measured if not POLICIES[entry["policy"]].ahead]
        if within:
            best = min(within, key=lambda entry: float(entry["against"]["median"]))
            sentences.append(f"{regime} pages: the best is {_verdict(best)}")
            others = [entry for entry in within if entry is not best]
            gained = [entry for entry in others if _gained(entry)]
            lost = [entry for entry in others if _lost(entry)]
            for what, found in (("others that gained", gained), ("others that took longer", lost)):
                names = [f"{e['policy']} ({e['against']['median']:.2f})" for e in found]
                if names:
                    sentences.append(f"{regime} pages: {what}: {', '.join(names)}.")
        ahead = [entry for entry in measured if entry not in within]
        sentences += [f"{regime} pages: {_verdict(entry)}" for entry in ahead]
    return sentences


def _verdict(entry: Summary) -> str:
    text = f"{entry['policy']}, with {_range(entry['against'], '.2f')} of inline's time"
    if entry["runs"] < _ENOUGH_RUNS:
        return f"{text}; too few runs to call it a gain."
    if _gained(entry):
        return f"{text}: a gain, each of its runs beat all of inline's."
    if _lost(entry):
        return f"{text}: no gain, each of its runs took longer than all of inline's."
    return f"{text}: no gain, its runs and inline's overlap."


def _gained(entry: Summary) -> bool:
    """Whether each of enough runs took less time than all of the baseline's beside them."""
    enough = entry["runs"] >= _ENOUGH_RUNS
    return enough and bool(entry["wall_s"]["max"] < entry["baseline_wall_s"]["min"])


def _lost(entry: Summary) -> bool:
    """Whether each of enough runs took longer than all of the baseline's beside them."""
    enough = entry["runs"] >= _ENOUGH_RUNS
    return enough and bool(entry["wall_s"]["min"] > entry["baseline_wall_s"]["max"])


def _described(results: Mapping[str, Any]) -> str:
    m = results["machine"]
    gpu = f", {results['gpu']['gpu']}" if results.get("gpu") else ""
    counts = [entry["runs"] for entry in results["cells"] if "runs" in entry] or [0]
    least, most = min(counts), max(counts)
    runs = f"{most}" if least == most else f"{least}-{most}"
    return (
        f"{results['curve']}, --backend {results['backend']}; runs of each: {runs}. "
        f"Machine: {m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB{gpu}, "
        f"Linux {m['kernel']}{' (virtual machine)' if m['virtual'] else ''}, "
        f"THP={m['transparent_hugepage']}, Python {m['python']}, NumPy {m['numpy']}"
    )


def verdict(results: Mapping[str, Any], interrupted: bool) -> int:
    """The exit code: 1 if anything failed, 130 after an interrupt."""
    return 1 if results["failures"] else 130 if interrupted else 0


def policies_table() -> list[str]:
    """What each policy means, as Markdown."""
    rows = [("policy", "what it does"), *((p.name, p.meaning) for p in POLICIES.values())]
    return machine.markdown_table(rows, names=2)


def check(folder: Path, name: str) -> None:
    """Refuse what `write` could not write, with a `bigmem.BigmemError`."""
    _outputs.check([folder / f"{name}.json", folder / f"{name}.md"])
    _outputs.check([folder / picture for picture in pipeline_pictures.names(name)])


def write(results: Mapping[str, Any], folder: Path, name: str) -> str:
    """Write NAME.json, NAME.md and the pictures; the page."""
    page = markdown(results)
    _outputs.write(folder / f"{name}.json", [_json(results).encode()])
    _outputs.write(folder / f"{name}.md", [page.encode()])
    pipeline_pictures.draw(results, folder, name)
    return page


def _json(results: Mapping[str, Any]) -> str:
    """JSON with a line a cell: their curves would make it long."""
    head = json.dumps({name: part for name, part in results.items() if name != "cells"}, indent=1)
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in results["cells"])
    return f'{head[:-2]},\n "cells": [\n{lines}\n ]\n}}\n'
