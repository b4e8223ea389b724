"""The tables of `bench.pinned`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import machine

Figures = Mapping[str, Any]
MISSING = "-"


def cell(figures: Figures, key: str, form: str = ".3g") -> str:
    """A figure, or that there is none."""
    value = figures.get(key)
    return MISSING if value is None else format(value, form)


def share(figures: Figures, key: str) -> str:
    """A part of the whole, in percent."""
    value = figures.get(key)
    return MISSING if value is None else f"{value:.0%}"


def launches(figures: Figures, key: str) -> str:
    """The 99th percentile and the worst of the launches."""
    seen = figures.get(key)
    return MISSING if seen is None else f"{seen['p99']:.3g} / {seen['worst']:.3g}"


def outcome(figures: Figures, key: str) -> str:
    """What became of a block that was freed under a copy."""
    seen = figures.get(key)
    if seen is None:
        return "cannot" if key == "told" and figures.get("untold") is not None else MISSING
    wrong = seen["wrong_bytes"]
    state = f"{wrong:,} bytes wrong" if wrong else "right"
    return f"{state}, held {seen['held_ms']:.3g} ms"


Column = tuple[str, Callable[[Figures], str]]

MEMORY: Sequence[Column] = (
    ("cold, ms/GiB", lambda f: cell(f, "cold_ms_per_gib")),
    ("first fill, ms/GiB", lambda f: cell(f, "first_fill_ms_per_gib")),
    ("warm, ms", lambda f: cell(f, "warm_ms")),
    ("free, ms", lambda f: cell(f, "free_idle_ms")),
    ("give back, ms", lambda f: cell(f, "give_back_ms")),
    ("back within 2 s", lambda f: share(f, "back_share")),
    ("129.5 MiB take, MiB", lambda f: cell(f, "odd_mib", ".4g")),
    ("H2D, GiB/s", lambda f: cell(f, "h2d_gib_s")),
    ("D2H, GiB/s", lambda f: cell(f, "d2h_gib_s")),
)

BUSY: Sequence[Column] = (
    ("grow, ms", lambda f: cell(f, "growth_ms")),
    ("launches: p99 / worst, ms", lambda f: launches(f, "growth_launches")),
    ("free, ms", lambda f: cell(f, "free_busy_ms")),
    ("launches", lambda f: launches(f, "free_launches")),
    ("give back, ms", lambda f: cell(f, "give_back_busy_ms")),
    ("launches", lambda f: launches(f, "give_back_launches")),
    ("back within 2 s", lambda f: share(f, "back_busy_share")),
)

REUSE: Sequence[Column] = (
    ("nobody told it of the copy", lambda f: outcome(f, "untold")),
    ("told", lambda f: outcome(f, "told")),
    ("told by", lambda f: f.get("tells") or MISSING),
)


def table(found: Mapping[str, Figures], columns: Sequence[Column]) -> list[list[str]]:
    """A row for each contender, also for those that are not there."""
    rows = [["", *(title for title, _ in columns)]]
    for name, figures in found.items():
        rows.append([name, *(of(figures) for _, of in columns)])
    return rows


def upload_table(figures: Figures) -> list[list[str]]:
    """Speeds of uploads from the page cache."""
    rows = [["from a warm page cache", "GiB/s"]]
    rows.append(["pinned memory, the most there is", cell(figures, "pinned_gib_s")])
    rows.append(["pageable copy", cell(figures, "pageable_gib_s")])
    threads = figures.get("upload_threads", MISSING)
    chunk = cell(figures, "upload_chunk_mib")
    rows.append(
        [f"upload as it comes ({threads} threads, {chunk} MiB)", cell(figures, "upload_gib_s")]
    )
    rows += [[name, f"{speed:.3g}"] for name, speed in figures.get("upload_speeds", {}).items()]
    return rows


def failures(found: Mapping[str, Figures]) -> list[str]:
    """What went wrong, one line each."""
    return [
        f"* {name}, {key}: {text}"
        for name, figures in found.items()
        for key, text in figures.items()
        if key.startswith("failed")
    ]


def page(found: Mapping[str, Figures], gib: float) -> str:
    """The tables, what went wrong, and the machine."""
    contenders = {name: figures for name, figures in found.items() if name != "upload"}
    tables = (
        {}
        if not contenders
        else {
            f"A block of {gib:g} GiB, the GPU idle": table(contenders, MEMORY),
            f"A block of {gib / 2:g} GiB while a kernel of 300 ms runs on another stream": table(
                contenders, BUSY
            ),
            "A block freed under a copy that waits for a kernel of 150 ms, allocated and filled "
            "again at once": table(contenders, REUSE),
        }
    )
    if "upload" in found:
        tables["Uploads"] = upload_table(found["upload"])
    lines = [machine.markdown_page(tables).rstrip()]
    gpus = {(f["gpu"], f["cuda"]) for f in found.values() if "gpu" in f}
    lines += [f"GPU: {name}, driver for CUDA {version}." for name, version in sorted(gpus)]
    notes = [f"{name}: {f['note']}" for name, f in contenders.items() if f.get("note")]
    if notes:
        lines += ["", f"Notes. {'; '.join(notes)}."]
    lines += ["", "Launches are those of a native thread, an empty kernel every 0.1 ms or so."]
    wrong = failures(found)
    if wrong:
        lines += ["", "What is missing, and why:", "", *wrong]
    return "\n".join([*lines, ""])
