"""The runs made so far, a line of JSON each, so that an interrupted comparison can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.pipeline_cells import Cell
from bench.pipeline_inputs import PipelineError

Run = Mapping[str, Any]


class Journal:
    """Runs by cell and round, in a file that only ever grows.

    Parameters
    ----------
    settings
        What all runs of a file have in common: its first line.

    Raises
    ------
    PipelineError
        If the file is there with other settings, or damaged.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._runs: dict[tuple[Cell, int], Run] = {}
        self._failed: list[tuple[Cell, int, Run]] = []
        lines = self._whole_lines()
        if not lines:
            self._append(settings)
            return
        number = 0
        try:
            others = json.loads(lines[0])
            for number in range(1, len(lines)):
                entry = json.loads(lines[number])
                self._note(Cell(**entry["cell"]), int(entry["round"]), dict(entry["run"]))
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(
                f"{path}: line {number + 1} is damaged ({type(error).__name__}); remove the line, "
                "or give another folder with -o"
            ) from None
        if others != settings:
            raise PipelineError(
                f"{path}: its runs are not comparable: they were made with {others}; give "
                "another folder with -o, or remove it"
            )

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

    def __contains__(self, key: tuple[Cell, int]) -> bool:
        """Whether the run need not be made; one that failed is due again."""
        return "error" not in self._runs.get(key, {"error": "not made"})

    def add(self, cell: Cell, number: int, run: Run) -> None:
        """Keep the run of a cell in a round."""
        self._append({"cell": asdict(cell), "round": number, "run": run})
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
