"""The runs made so far, a line of JSON each, so that an interrupted comparison can go on.

Machines are faster on one day than on another. So runs are only compared with those of the same
sitting: all that was made on a machine, between two starts of it, without a pause of ten minutes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.pipeline_cells import Cell
from bench.pipeline_inputs import PipelineError
from prover.formats.proof_json import nests_deeply

Run = Mapping[str, Any]

PAUSE_SECONDS = 600.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Journal:
    """Runs by cell, round and sitting, in a file that only ever grows.

    Parameters
    ----------
    settings
        What all runs of a file have in common: its first line.
    clock, boot
        The time of day in seconds, and what names this start of the machine.

    Raises
    ------
    PipelineError
        If another process adds to the file, or it is there with other settings, or damaged.
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
        self.clock = clock
        self._boot = boot or _BOOT.read_text().strip()
        self._last: tuple[int, str, float] | None = None
        """Of the newest run: its sitting, the machine's start, and when it ended."""
        self._runs: dict[Cell, dict[tuple[int, int], Run]] = {}
        self._failed: list[tuple[Cell, int, Run]] = []
        self._file = path.open("ab+")
        try:
            self._read(settings)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _read(self, settings: Mapping[str, Any]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(
                f"{self.path}: another process adds its runs there; give another folder with -o, "
                "or wait"
            ) from None
        lines = self._whole_lines()
        if not lines:
            self._append(settings)
            return
        number = 1
        try:
            others = _object(lines[0])
            if others != settings:
                differ = {
                    name: others[name] for name in others if settings.get(name) != others[name]
                }
                raise PipelineError(
                    f"{self.path}: its runs are not comparable: they were made with {differ}; give "
                    "another folder with -o, or remove it"
                )
            for number in range(2, len(lines) + 1):
                entry = _unsealed(lines[number - 1])
                run = entry["run"]
                self._note(Cell(**entry["cell"]), entry["round"], run)
                self._last = run["sitting"], entry["boot"], entry["ended"]
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(
                f"{self.path}: line {number} is damaged ({type(error).__name__}); "
                f"{'remove the line, or ' if number > 1 else ''}give another folder with -o"
            ) from None

    def _whole_lines(self) -> list[bytes]:
        """All lines of the file; one that a killed process left unfinished is cut off."""
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self._file.truncate(len(whole))
        return whole.splitlines()

    def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            if not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat()):
                raise FileNotFoundError(errno.ENOENT, "another file has taken its place")
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise PipelineError(f"{self.path}: cannot be written: {error.strerror}") from None

    def sitting(self, began: float) -> int:
        """The number, from one, of the sitting that a run belongs to which began at a time."""
        if self._last is None:
            return 1
        number, boot, ended = self._last
        goes_on = boot == self._boot and 0 <= began - ended < PAUSE_SECONDS
        return number if goes_on else number + 1

    def lacking(self, cells: Sequence[Cell], number: int) -> list[Cell]:
        """The cells that a round lacks, in their order.

        A run counts if a baseline was run in the same sitting, where that is compared at all.
        """
        asked = set(cells)
        return [
            cell
            for cell in cells
            if not self._good(cell, number) & self._good(_baseline(cell, asked), number)
        ]

    def due(self, cells: Sequence[Cell], number: int) -> list[Cell]:
        """The cells to run now to complete a round, in their order; others may be due after them.

        What is lacking needs a baseline in this sitting. What has a good run of an earlier one is
        not run again before that baseline is there.
        """
        now = self.sitting(self.clock())
        asked = set(cells)
        due: set[Cell] = set()
        for cell in self.lacking(cells, number):
            baseline = _baseline(cell, asked)
            ready = now in self._good(baseline, number)
            if not ready:
                due.add(baseline)
            if ready or not self._good(cell, number):
                due.add(cell)
        return [cell for cell in cells if cell in due]

    def _good(self, cell: Cell, number: int) -> set[int]:
        """The sittings in which a cell was run in a round and did not fail."""
        runs = self._runs.get(cell, {})
        return {sitting for (n, sitting), run in runs.items() if n == number and "error" not in run}

    def add(self, cell: Cell, number: int, run: Run, began: float) -> None:
        """Keep the run of a cell in a round, which began at a time of the clock and ends now."""
        run = {**run, "sitting": self.sitting(began)}
        entry = {"cell": asdict(cell), "round": number, "run": run}
        ended = self.clock()
        self._append(_sealed({**entry, "boot": self._boot, "ended": ended}))
        self._last = run["sitting"], self._boot, ended
        self._note(cell, number, run)

    def _note(self, cell: Cell, number: int, run: Run) -> None:
        self._runs.setdefault(cell, {})[number, run["sitting"]] = run
        if "error" in run:
            self._failed.append((cell, number, run))

    def failed(self) -> Sequence[tuple[Cell, int, Run]]:
        """All runs that failed, those that were made again since included."""
        return self._failed

    def runs(self, cell: Cell) -> Mapping[tuple[int, int], Run]:
        """The newest run of a cell by round and sitting."""
        return self._runs.get(cell, {})


def _baseline(cell: Cell, asked: Set[Cell]) -> Cell:
    """What a cell is compared with; where that is not asked for, it stands alone."""
    return cell.baseline if cell.baseline in asked else cell


def _sealed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """With a checksum: figures that a bad disk or an editor has changed are not compared."""
    return {**entry, "crc": zlib.crc32(json.dumps(entry).encode())}


def _object(line: bytes) -> dict[str, Any]:
    if nests_deeply(line):
        raise ValueError("nested too deeply")
    return dict(json.loads(line))


def _unsealed(line: bytes) -> dict[str, Any]:
    entry = _object(line)
    if entry.pop("crc") != zlib.crc32(json.dumps(entry).encode()):
        raise ValueError("another checksum")
    return entry
