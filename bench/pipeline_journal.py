"""The runs made so far, a line of JSON each, so that an interrupted comparison can go on.

Machines are faster on one day than on another. So runs are only compared with those of the same
sitting: all that was made on a machine, between two starts of it, without a pause of ten minutes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.pipeline_cells import Cell
from bench.pipeline_inputs import PipelineError

Run = Mapping[str, Any]

PAUSE_SECONDS = 600.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Journal:
    """Runs by cell and round, in a file that only ever grows.

    Parameters
    ----------
    settings
        What all runs of a file have in common: its first line.
    clock, boot
        The time of day in seconds, and what names this start of the machine.

    Attributes
    ----------
    sitting
        The number of the sitting whose runs are added, from one.

    Raises
    ------
    PipelineError
        If the file is there with other settings, or damaged.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> None:
        self.path = path
        self._clock = clock
        self._boot = boot or _BOOT.read_text().strip()
        self.sitting = 1
        self._runs: dict[tuple[Cell, int], Run] = {}
        self._failed: list[tuple[Cell, int, Run]] = []
        lines = self._whole_lines()
        if not lines:
            self._append(settings)
            return
        number = 0
        try:
            others = json.loads(lines[0])
            if others != settings:
                raise PipelineError(
                    f"{path}: its runs are not comparable: they were made with {others}; give "
                    "another folder with -o, or remove it"
                )
            for number in range(1, len(lines)):
                entry = json.loads(lines[number])
                run = dict(entry["run"])
                self._note(Cell(**entry["cell"]), int(entry["round"]), run)
                pause = clock() - float(entry["made"])
                goes_on = entry["boot"] == self._boot and 0 <= pause < PAUSE_SECONDS
                self.sitting = int(run["sitting"]) + (not goes_on)
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(
                f"{path}: line {number + 1} is damaged ({type(error).__name__}); remove the line, "
                "or give another folder with -o"
            ) from None

    def _whole_lines(self) -> list[bytes]:
        """All lines of the file; one that a killed process left unfinished is cut off."""
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self.path, len(whole))
        return whole.splitlines()

    def _append(self, entry: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def due(self, cells: Sequence[Cell], number: int) -> list[Cell]:
        """The cells whose run of a round is still to be made, in their order.

        One that failed is due again. All that share a baseline are, where a sitting that is over
        made a part of them: the rest could not be compared with it.
        """
        due: set[Cell] = set()
        for baseline in {cell.baseline for cell in cells}:
            group = {c: self._made(c, number) for c in cells if c.baseline == baseline}
            sittings = set(group.values())
            if len(sittings) > 1 or None in sittings:
                due |= {cell for cell, made in group.items() if made != self.sitting}
        return [cell for cell in cells if cell in due]

    def _made(self, cell: Cell, number: int) -> int | None:
        """The sitting of a run, if it was made and did not fail."""
        run = self._runs.get((cell, number))
        return None if run is None or "error" in run else int(run["sitting"])

    def add(self, cell: Cell, number: int, run: Run) -> None:
        """Keep the run of a cell in a round, with its sitting."""
        run = {**run, "sitting": self.sitting}
        entry = {"cell": asdict(cell), "round": number, "run": run}
        self._append({**entry, "boot": self._boot, "made": self._clock()})
        self._note(cell, number, run)

    def _note(self, cell: Cell, number: int, run: Run) -> None:
        self._runs[cell, number] = run
        if "error" in run:
            self._failed.append((cell, number, run))

    def failed(self) -> list[tuple[Cell, int, Run]]:
        """All runs that failed, those that were made again since included."""
        return self._failed

    def runs(self, cell: Cell) -> dict[int, Run]:
        """The runs of a cell by round."""
        return {number: run for (other, number), run in self._runs.items() if other == cell}
