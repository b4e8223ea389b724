"""Where the time of a run went: layer by layer, and what is in their gaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from prover.errors import ProverError
from prover.pipeline.timers import Node, Timers

COPIES = frozenset({"witness", "transfer"})
"""Layers that do nothing but copy."""

MOST_UNEXPLAINED = 0.01
"""The part of a run that may be unexplained."""

NOISE_S = 0.0005
"""What is not explained of a proof and still nobody's business: a few lines of Python."""

NOISE_OF_THREAD = 3
"""What a thread takes to begin and to end is worth so many proofs' noise."""


class UnexplainedTime(ProverError):
    """The layers of a run do not account for its time."""


@dataclass(frozen=True)
class Row:
    """A layer at one place, on all threads; seconds unless the name says otherwise.

    Attributes
    ----------
    path
        The layer's name behind those around it.
    calls
        How often it was entered.
    outer_s, inner_s, gap_s
        From entry to exit; with a layer inside running; the difference, which for a layer without
        any inside is all of it.
    map_s, release_s
        Of the gap, on this thread: taking memory of the allocators (mapping, and pinning where they
        pin) and letting go of it.
    fault_s, faults
        The rest of the kernel's time, page faults above all; the number of faults.
    wait_s
        The rest of the time in which the thread was on no processor.
    copy_s, work_s
        What then is left of a layer without any inside, of `COPIES` or another.
    unexplained_s
        What is left of the gap of a layer with others inside.
    device_s
        What a device needed for it by its own clock.
    """

    path: tuple[str, ...]
    calls: int
    outer_s: float
    inner_s: float
    gap_s: float
    map_s: float
    release_s: float
    fault_s: float
    faults: int
    wait_s: float
    copy_s: float
    work_s: float
    unexplained_s: float
    device_s: float


@dataclass(frozen=True)
class LayerReport:
    """The layers of a run; as text, a table.

    Attributes
    ----------
    wall_s
        Of the run.
    reading_s
        What the timers took of it on the workers' threads; it is in no layer.
    workers, proofs
        Threads that proved, and what they made.
    idle_s
        Workers' waiting for the last of them, when nothing was left to begin; and what passed of
        the first one's time before the others began.
    between_s
        Of the workers' wall time, what passed before and after them: threads that begin and end.
    rows
        Each layer before those inside it.
    """

    wall_s: float
    reading_s: float
    workers: int
    proofs: int
    idle_s: float
    between_s: float
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, timers: Timers, device_seconds: Mapping[str, float] | None = None) -> LayerReport:
        """The report of a run that was timed.

        Parameters
        ----------
        timers
            Closed.
        device_seconds
            What devices spent on stages in the run, see `Backend.device_seconds`.
        """
        tree = timers.tree()
        worker = tree.inside.get("worker", Node())
        circuit = worker.inside.get("circuit", Node())
        reading, idle = timers.reading_s("worker"), timers.idle_s("worker")
        rows = tuple(_row(path, node, device_seconds or {}) for path, node in tree.walk())
        return cls(
            wall_s=timers.wall_s,
            reading_s=reading,
            workers=worker.calls,
            proofs=circuit.calls,
            idle_s=idle,
            between_s=worker.calls * timers.wall_s - worker.wall_s - reading - idle,
            rows=rows,
        )

    @property
    def unexplained_s(self) -> float:
        """Seconds of the workers that nothing accounts for."""
        gaps = sum(row.unexplained_s for row in self.rows if row.path[0] == "worker")
        return gaps + max(0.0, self.between_s)

    @property
    def unexplained(self) -> float:
        """`unexplained_s` as a part of the workers' wall time."""
        total = self.workers * self.wall_s
        return self.unexplained_s / total if total > 0 else 0.0

    @property
    def synthesis_unexplained_s(self) -> float:
        """Seconds of the thread of the synthesis that nothing accounts for."""
        return sum(row.unexplained_s for row in self.rows if row.path[0] == "ahead")

    def as_json(self) -> dict[str, object]:
        """All of it as a JSON object."""
        names = ("unexplained_s", "unexplained", "synthesis_unexplained_s")
        return {**asdict(self), **{name: getattr(self, name) for name in names}}

    def check(self, most: float = MOST_UNEXPLAINED, noise_s: float = NOISE_S) -> None:
        """Refuse a run of whose time too much is unexplained, to the proofs or to the synthesis.

        Parameters
        ----------
        most
            The part of it that may be.
        noise_s
            Seconds a proof that may be, however short the run; for a thread, `NOISE_OF_THREAD`
            times as much.

        Raises
        ------
        UnexplainedTime
        """
        for whose, seconds, threads in (
            ("the proofs'", self.unexplained_s, self.workers),
            ("the synthesis's", self.synthesis_unexplained_s, 1),
        ):
            noise = noise_s * (self.proofs + NOISE_OF_THREAD * threads)
            total = threads * self.wall_s
            limit = max(most * total, noise)
            if seconds > limit:
                raise UnexplainedTime(
                    f"{seconds / total:.1%} of {whose} time is unexplained: {1e3 * seconds:.1f} ms "
                    f"of {total:.3f} s, above {1e3 * limit:.1f} ms ({most:.1%}, or "
                    f"{1e3 * noise_s:g} ms a proof and {1e3 * noise_s * NOISE_OF_THREAD:g} a "
                    "thread if that is more); the machine may be busy with something else"
                )

    def __str__(self) -> str:
        table = [_HEAD, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in table) for i in range(len(_HEAD))]
        lines = []
        for name, *cells in table:
            numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            lines.append("  ".join((name.ljust(widths[0]), *numbers)).rstrip())
        return "\n".join(
            [
                *lines,
                "ms; of a gap: map (and pin), release (on this thread), fault (other kernel time), "
                "wait (not running);",
                "the rest: copy or work of a layer with none inside, unexplained of others",
                f"run {self.wall_s:.3f} s, workers {self.workers}, reading timers "
                f"{1e3 * self.reading_s:.1f} ms, idle {1e3 * self.idle_s:.1f} ms, "
                f"threads that begin and end {1e3 * self.between_s:.1f} ms, "
                f"unexplained {1e3 * self.unexplained_s:.1f} ms ({self.unexplained:.2%})",
            ]
        )


_HEAD = ("layer", "calls", "outer", "inner", "gap", "map", "release", "fault", "wait", "copy",
         "work", "unexplained", "device")  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    seconds = (
        *(row.outer_s, row.inner_s, row.gap_s, row.map_s, row.release_s, row.fault_s, row.wait_s),
        *(row.copy_s, row.work_s, row.unexplained_s, row.device_s),
    )
    shown = (f"{1e3 * value:.2f}" if value else "" for value in seconds)
    return ("  " * (len(row.path) - 1) + row.path[-1], str(row.calls), *shown)


def _row(path: tuple[str, ...], node: Node, device_seconds: Mapping[str, float]) -> Row:
    own, left = node.own, node.own.wall_s
    # Allocators work in the kernel: what they took beyond its time, they waited.
    in_allocators = own.map_s + own.release_s
    waited_there = max(0.0, in_allocators - own.kernel_s)
    parts = []
    # One after the other: what was counted in one is not counted again, and nothing below zero.
    for part in (
        own.map_s,
        own.release_s,
        own.kernel_s - in_allocators,
        own.wall_s - own.cpu_s - waited_there,
    ):
        parts.append(max(0.0, min(part, left)))
        left -= parts[-1]
    mapped, released, fault, wait = parts
    leaf, copies = not node.inside, path[-1] in COPIES
    return Row(
        path=path,
        calls=node.calls,
        outer_s=node.wall_s,
        inner_s=node.wall_s - own.wall_s,
        gap_s=own.wall_s,
        map_s=mapped,
        release_s=released,
        fault_s=fault,
        faults=own.faults,
        wait_s=wait,
        copy_s=left if leaf and copies else 0.0,
        work_s=left if leaf and not copies else 0.0,
        unexplained_s=0.0 if leaf else left,
        device_s=device_seconds.get(path[-1], 0.0) if path[0] == "worker" else 0.0,
    )
