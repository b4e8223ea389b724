"""The demo's results as a table, as Markdown and as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import machine

Row = Mapping[str, Any]

COLUMNS = ("pages", "policy", "wall", "ratio", "map", "fault", "release", "faults", "peak",
           "reclaim")  # fmt: skip

READING = (
    "Times in seconds. ratio: wall time against mapped with the same pages. map, fault and release "
    "are spent on the program's own threads: in the allocator, in the kernel on first touch (added "
    "up over the threads), and letting go. reclaim is what the workers spent meanwhile, beside the "
    "program. faults: number of minor page faults. peak: highest RSS in MiB, the mapped key "
    "included."
)


def ratio(row: Row, rows: Sequence[Row]) -> float:
    """Wall time of a run against that of `mapped` with the same pages."""
    mapped = next(
        other
        for other in rows
        if other["allocator"] == "mapped" and other["regime"] == row["regime"]
    )
    return float(row["wall_s"] / mapped["wall_s"])


def cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """One run of a panel as the strings of `COLUMNS`."""
    return (
        row["regime"],
        row["allocator"],
        f"{row['wall_s']:.2f}",
        f"{ratio(row, rows):.2f}",
        f"{row['map_s']:.3f}",
        f"{row['fault_s']:.2f}",
        f"{row['release_s']:.3f}",
        f"{row['minor_faults']:,}",
        f"{row['peak_rss_bytes'] / machine.MIB:,.0f}",
        f"{row['reclaim_s']:.3f}",
    )


def titles(results: Mapping[str, Any]) -> dict[str, str]:
    """The heading of each panel, with its sizes."""
    proofs, arrays = results["proofs"][0], results["arrays"][0]
    return {
        "proofs": f"{proofs['proofs']} proofs of {proofs['constraints']:,} constraints "
        f"({proofs['curve']}); vectors of a few MiB, arithmetic dominates",
        "arrays": f"{arrays['steps']} steps over {arrays['gib']:g} GiB of arrays: filled, added, "
        "dropped; memory dominates",
    }


def tax(row: Row, cores: int) -> dict[str, float]:
    """Seconds of a run's wall time that went to memory, by kind.

    The threads of a proof fault side by side, so that the clock sees a share of what they spend;
    everything else happens on one thread.
    """
    threads = cores if "proofs" in row else 1
    return {
        "release": row["release_s"],
        "fault": row["fault_s"] / threads,
        "map": row["map_s"],
    }


def verdict(panel: str, results: Mapping[str, Any]) -> str:
    """Say in one sentence whether the policies differed in a panel.

    Runs of the same program differ by several percent on a shared machine: below a tenth of the
    wall time, the kernel's share says more than the clock.
    """
    rows, cores = results[panel], results["machine"]["cores"]
    share = max(sum(tax(row, cores).values()) / row["wall_s"] for row in rows)
    if share < 0.1:
        return (
            f"{panel}: the memory tax is at most {share:.1%} of the wall time, so the policies "
            "hardly differ here; differences of the clock beyond that are noise."
        )
    best = min(rows, key=lambda row: ratio(row, rows))
    return (
        f"{panel}: the memory tax is up to {share:.0%} of the wall time; "
        f"{best['allocator']} with {best['regime']} pages takes {ratio(best, rows):.2f} of "
        "mapped's time."
    )


def show(results: Mapping[str, Any], console: Console) -> None:
    """Print both panels."""
    for panel, title in titles(results).items():
        table = Table(
            title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False
        )
        for name in COLUMNS:
            table.add_column(
                name, no_wrap=True, justify="left" if name in ("pages", "policy") else "right"
            )
        for row in results[panel]:
            table.add_row(*cells(row, results[panel]), end_section=row["allocator"] == "recycle")
        console.print(table)
    console.print(READING)
    for panel in titles(results):
        console.print(verdict(panel, results))
    console.print(f"Machine: {machine.summary()}")


def write(results: Mapping[str, Any], out: Path) -> None:
    """Write demo.json, demo.md and demo.png."""
    (out / "demo.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "demo.md").write_text(markdown(results))
    draw(results, out / "demo.png")


def markdown(results: Mapping[str, Any]) -> str:
    """Both panels as Markdown, as the README shows them."""
    lines = []
    for panel, title in titles(results).items():
        rows = [COLUMNS, *(cells(row, results[panel]) for row in results[panel])]
        lines += [f"**{title}**", "", *machine.markdown_table(rows, names=2), ""]
    lines += [READING, "", *(f"* {verdict(panel, results)}" for panel in titles(results))]
    return "\n".join([*lines, "", f"Machine: {machine.summary()}.", ""])


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw the picture: for each panel and page regime, where each policy's wall time went."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    regimes = list(dict.fromkeys(row["regime"] for row in results["arrays"]))
    figure, grid = plt.subplots(
        2, len(regimes), figsize=(11, 7), sharey="row", layout="constrained", squeeze=False
    )
    for axes, (panel, title) in zip(grid, titles(results).items(), strict=True):
        for axis, regime in zip(axes, regimes, strict=True):
            rows = [row for row in results[panel] if row["regime"] == regime]
            bars(axis, rows, results["machine"]["cores"])
            axis.set_title(f"{title.split(';')[0]}, {regime} pages", fontsize=9)
        axes[0].set_ylabel("seconds")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=len(labels))
    figure.suptitle(f"Where the time went, by release policy\n{machine.summary()}", fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def bars(axis: Any, rows: Sequence[Row], cores: int) -> None:
    """Stacked bars of wall time; the reclaimer's seconds as a slim bar beside."""
    names = [row["allocator"] for row in rows]
    bottom = [0.0] * len(rows)
    for part, colour in (("release", "#c0392b"), ("fault", "#e08e45"), ("map", "#f2cf63")):
        heights = [tax(row, cores)[part] for row in rows]
        axis.bar(names, heights, 0.6, bottom=bottom, color=colour, label=part)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    rest = [row["wall_s"] - low for row, low in zip(rows, bottom, strict=True)]
    axis.bar(names, rest, 0.6, bottom=bottom, color="#8fb3cf", label=f"the work ({cores} cores)")
    axis.bar(
        [i + 0.38 for i in range(len(rows))],
        [row["reclaim_s"] for row in rows],
        0.12, color="#555555", label="reclaimer, beside",
    )  # fmt: skip
    axis.tick_params(labelsize=8)
