"""What the parts of the GPU bench share: results, failures, time left, times of GPU work."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench import machine
from prover.backends.cuda.device import Device


@dataclass
class Run:
    """What was found so far."""

    device: Device
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    checked: int = 0
    start: float = field(default_factory=time.perf_counter)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part that may fail without ending the others."""
        try:
            yield
        except Exception:
            self.failures.append(name)
            print(f"FAILED: {name}\n{traceback.format_exc()}", flush=True)

    def check(self, name: str, equal: bool) -> None:
        """Note how a comparison ended, and tell if it failed."""
        self.checked += 1
        if not equal:
            self.failures.append(name)
            print(f"WRONG  {name}", flush=True)

    def has_time(self) -> bool:
        """Whether another measurement may begin."""
        return time.perf_counter() - self.start < self.seconds

    def row(self, table: str, head: list[str], cells: list[str]) -> None:
        """Add a row to a table, and print it."""
        rows = self.tables.setdefault(table, [head])
        if len(rows) == 1:
            print(f"\n{table}\n{'  '.join(f'{h:>12}' for h in head)}", flush=True)
        rows.append(cells)
        print("  ".join(f"{cell:>12}" for cell in cells), flush=True)

    def add(self, name: str, **figures: Any) -> None:
        """Add an entry to a list of figures."""
        self.figures.setdefault(name, []).append(figures)


def events_ms(
    work: Callable[..., object], *arguments: object, inner: int = 1, runs: int = 7
) -> float:
    """Median milliseconds of GPU work on the current stream, ``inner`` at a time."""
    import cupy

    times: list[float] = []
    for number in range(runs + 2):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        for _ in range(inner):
            work(*arguments)
        end.record()
        end.synchronize()
        if number >= 2:  # the first two warm up
            times.append(cupy.cuda.get_elapsed_time(begin, end) / inner)
    return statistics.median(times)


def describe_gpu() -> dict[str, Any]:
    """Which GPU and which software."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "gpu": properties["name"].decode(),
        "multiprocessors": properties["multiProcessorCount"],
        "memory_gib": round(properties["totalGlobalMem"] / machine.GIB),
        "cuda": cupy.cuda.runtime.driverGetVersion(),
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cupy": cupy.__version__,
    }
