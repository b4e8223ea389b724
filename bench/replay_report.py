"""Replays as Markdown tables."""

from __future__ import annotations

from typing import Any

from bench import machine

HEADS = [
    "", "allocate ms", "touch ms", "release ms", "all ms", "against glibc", "in the kernel s",
    "faults", "peak MiB", "mean MiB", "at the end MiB",
]  # fmt: skip


def page(content: dict[str, Any]) -> str:
    """A section a log, with a table a page regime."""
    lines: list[str] = []
    for title, found in content["logs"].items():
        lines += [f"### {title}", "", describe(found["log"]), ""]
        for regime, results in found["regimes"].items():
            table = machine.markdown_table(rows(results))
            lines += [f"**{regime} pages**", "", *table, ""]
    return "\n".join([*lines, f"Machine: {machine.summary()}.", ""])


def describe(facts: dict[str, Any]) -> str:
    """A log in a sentence."""
    threads = f"{facts['threads']} threads" if facts["threads"] > 1 else "one thread"
    return (
        f"{facts['allocations']:,} allocations of {facts['bytes'] / machine.GIB:.2f} GiB on "
        f"{threads} in {facts['seconds']:.1f} s, {facts['touched'] / machine.GIB:.2f} GiB of them "
        f"touched; {facts['peak_touched'] / machine.MIB:,.0f} MiB touched at once, "
        f"{facts['touched_at_end'] / machine.MIB:,.0f} MiB never released."
    )


def rows(results: dict[str, Any]) -> list[list[str]]:
    """The head and a row an allocator; one that could not be replayed says why."""
    base = spent(results["glibc"]) if "allocate_s" in results.get("glibc", {}) else None
    table = [HEADS]
    for name, found in results.items():
        refusal = found.get("absent", found.get("failed"))
        if refusal is not None:
            table.append([name, refusal, *[""] * (len(HEADS) - 2)])
            continue
        seconds = [found[key] for key in ("allocate_s", "touch_s", "release_s")]
        table.append(
            [
                name,
                *(f"{1e3 * each:,.1f}" for each in (*seconds, spent(found))),
                f"{spent(found) / base:.2f}" if base else "",
                f"{found['system_s']:.2f}",
                f"{found['faults']:,.0f}",
                *(
                    f"{round(found[key] / machine.MIB):,}"
                    for key in ("peak_bytes", "mean_bytes", "end_bytes")
                ),
            ]
        )
    return table


def spent(found: dict[str, Any]) -> float:
    """Seconds on the program's own threads."""
    total: float = found["allocate_s"] + found["touch_s"] + found["release_s"]
    return total
