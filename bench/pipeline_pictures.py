"""One picture a question: where the time goes, who pays for memory, how much is resident when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import machine
from bench.pipeline_cells import circuits_of

Summary = Mapping[str, Any]
DRAWN = (
    "inline",
    "detached",
    "early",
    "recycle",
    "recycle+pinned",
    "pinned ahead",
    "glibc",
    "jemalloc tuned",
)
"""Whose resident set is drawn: more lines would hide each other."""

LAYERS = ("gap", "wait", "witness", "NTT/MSM-H", "split vectors", "prep MSM", "batch addition",
          "tail MSMs", "drop", "B in G2", "epilogue", "before release", "release",
          "advance")  # fmt: skip
"""From the bottom to the top."""

TAX = (("release_s", "#c0392b", "release"), ("fault_s", "#e08e45", "fault"),
       ("map_s", "#f2cf63", "map"))  # fmt: skip


def names(name: str) -> list[str]:
    """The files of the pictures of results."""
    return [f"{name}-{question}.png" for question in ("time", "tax", "resident")]


def draw(results: Mapping[str, Any], folder: Path, name: str) -> None:
    """Draw NAME-time.png, NAME-tax.png and NAME-resident.png of the largest size measured."""
    measured = [entry for entry in results["cells"] if "not_run" not in entry]
    if not measured:
        return
    log2 = max(entry["log2"] for entry in measured)
    largest = [entry for entry in measured if entry["log2"] == log2]
    title = f"{circuits_of(results['circuits'], log2)}, {results['curve']}"
    panels = (
        (_layers, "seconds"),
        (_tax, "seconds of the program's own threads"),
        (_resident, "MiB resident"),
    )
    for file, (panel, label) in zip(names(name), panels, strict=True):
        _picture(largest, panel, label, title, folder / file)


def _picture(
    entries: list[Summary],
    panel: Callable[[Any, list[Summary]], None],
    label: str,
    title: str,
    path: Path,
) -> None:
    """A panel for each mode and page regime."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    modes = list(dict.fromkeys(entry["mode"] for entry in entries))
    regimes = [one for one in machine.REGIMES if one in {entry["regime"] for entry in entries}]
    size = (6 * len(regimes), 1 + 3.6 * len(modes))
    figure, grid = plt.subplots(
        len(modes), len(regimes), figsize=size, sharey="row", layout="constrained", squeeze=False
    )
    handles: dict[str, Any] = {}
    for axes, mode in zip(grid, modes, strict=True):
        for axis, regime in zip(axes, regimes, strict=True):
            here = [e for e in entries if (e["mode"], e["regime"]) == (mode, regime)]
            panel(axis, here)
            axis.set_title(f"{mode} mode, {regime} pages", fontsize=9)
            axis.tick_params(labelsize=7)
            axis.set_ylim(bottom=0)
            for handle, text in zip(*axis.get_legend_handles_labels(), strict=True):
                handles.setdefault(text, handle)
        axes[0].set_ylabel(label, fontsize=8)
    figure.legend(handles.values(), handles, fontsize=7, loc="outside lower center",
                  ncols=3 * len(regimes))  # fmt: skip
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _layers(axis: Any, entries: list[Summary]) -> None:
    """Stacked seconds of each layer; the wall time, with its spread, as a mark."""
    found = dict.fromkeys(name for entry in entries for name in entry["layers"])
    names = [*(name for name in LAYERS if name in found), *(n for n in found if n not in LAYERS)]
    parts = {name: [entry["layers"].get(name, 0.0) for entry in entries] for name in names}
    _stack(axis, entries, [(name, _colour(name), parts[name]) for name in names])
    wall = [entry["wall_s"] for entry in entries]
    middle = [spread["median"] for spread in wall]
    low = [spread["median"] - spread["min"] for spread in wall]
    high = [spread["max"] - spread["median"] for spread in wall]
    _beside(axis, "synthesis, beside", [entry["synthesis_s"]["median"] for entry in entries])
    axis.errorbar(
        range(len(entries)),
        middle,
        [low, high],
        fmt="k_",
        capsize=3,
        label="wall: median, least, most",
    )


def _colour(name: str) -> Any:
    """A layer's own in every picture; of those that are not in `LAYERS`, grey."""
    import matplotlib as mpl

    return mpl.colormaps["tab20"](LAYERS.index(name)) if name in LAYERS else "#999999"


def _tax(axis: Any, entries: list[Summary]) -> None:
    """Stacked seconds of releases, faults and mappings; the reclaimer's beside."""
    parts = [(text, c, [entry[name]["median"] for entry in entries]) for name, c, text in TAX]
    _stack(axis, entries, parts)
    _beside(axis, "reclaimer, beside", [entry["reclaim_cpu_s"]["median"] for entry in entries])


def _stack(axis: Any, entries: list[Summary], parts: list[tuple[str, Any, list[float]]]) -> None:
    places = range(len(entries))
    bottom = [0.0] * len(entries)
    for label, colour, heights in parts:
        axis.bar(places, heights, 0.6, bottom=bottom, color=colour, label=label)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axis.set_xticks(places, [entry["policy"] for entry in entries], rotation=40, ha="right")


def _beside(axis: Any, label: str, heights: list[float]) -> None:
    """Slim bars: what another thread did meanwhile."""
    places = [i + 0.4 for i in range(len(heights))]
    axis.bar(places, heights, 0.12, color="#555555", label=label)


def _resident(axis: Any, entries: list[Summary]) -> None:
    """The resident set of the run with the median wall time, over time."""
    for entry in entries:
        if entry["policy"] in DRAWN and entry["resident"]:
            times, sizes = zip(*entry["resident"], strict=True)
            axis.plot(
                times, [size / machine.MIB for size in sizes],
                color=f"C{DRAWN.index(entry['policy'])}", linewidth=1, label=entry["policy"],
            )  # fmt: skip
    axis.set_xlabel("seconds", fontsize=8)
