"""A picture of a run's memory tax; needs matplotlib."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bigmem.profile.account import Account
from bigmem.profile.record import place
from bigmem.terminal import one_line

_PARTS = {"allocating": "tab:blue", "faulting": "tab:orange", "freeing": "tab:red"}
_REST = "tab:gray"
_WORST = 10


def picture(found: Account, title: str) -> bytes:
    """A PNG: where the wall time went, and the ten worst lines."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{title}: {found.tax_s:.2f} s of memory tax in {found.wall_s:.2f} s")
    whole, lines = figure.subplots(1, 2, width_ratios=(1, 4))

    bottom = 0.0
    parts = zip(_PARTS.items(), (found.alloc_s, found.fault_s, found.free_s), strict=True)
    for (name, colour), seconds in parts:
        whole.bar(0, seconds, bottom=bottom, color=colour, label=name)
        bottom += seconds
    rest = max(found.wall_s - found.tax_s, 0.0)
    whole.bar(0, rest, bottom=bottom, color=_REST, label="everything else")
    whole.set_xticks([])
    whole.set_ylabel("seconds")
    whole.set_title("wall time")
    whole.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), frameon=False)

    worst = found.lines[:_WORST]
    rows = range(len(worst))
    left = [0.0] * len(worst)
    each = zip(
        _PARTS.values(),
        (
            [line.record.alloc_s for line in worst],
            [line.fault_s for line in worst],
            [line.record.free_s for line in worst],
        ),
        strict=True,
    )
    for colour, seconds_of in each:
        lines.barh(rows, seconds_of, left=left, color=colour)
        left = [a + b for a, b in zip(left, seconds_of, strict=True)]
    # A name is text, in which $ begins no formula.
    names = [one_line(place(line.record, Path(line.record.file).name)) for line in worst]
    lines.set_yticks(rows, [name.replace("$", r"\$") for name in names])
    lines.invert_yaxis()
    lines.set_xlabel("seconds")
    lines.set_title("the worst lines")

    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return png.getvalue()
