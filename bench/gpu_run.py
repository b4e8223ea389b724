"""What the parts of the GPU bench share: results, failures, time left, times of GPU work."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
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

    def has_time(self, wanted: float = 0) -> bool:
        """Whether another measurement may begin, which takes about ``wanted`` seconds."""
        return time.perf_counter() - self.start + wanted < self.seconds

    def may_begin(self, what: str, wanted: float = 0) -> bool:
        """As `has_time`; the tables tell if not."""
        if self.has_time(wanted):
            return True
        self.leave_out(what, "time")
        return False

    def leave_out(self, what: str, reason: str) -> None:
        """Let the tables tell that something was not measured."""
        self.row("Left out", ["what", "for want of"], [what, reason])
        self.add("left_out", what=what, reason=reason)

    @contextmanager
    def within_memory(self, what: str) -> Iterator[None]:
        """A measurement that is left out where memory runs out, which is no failure."""
        try:
            yield
        except MemoryError:
            self.leave_out(what, "memory")

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


def gpu_line(gpu: Mapping[str, Any]) -> str:
    """What `describe_gpu` has found, as a line."""
    driver = f"{gpu['cuda'] // 1000}.{gpu['cuda'] % 1000 // 10}"
    return (
        f"GPU: {gpu['gpu']}, {gpu['multiprocessors']} multiprocessors, {gpu['memory_gib']} GiB, "
        f"driver for CUDA {driver}, NVRTC {gpu['nvrtc']}, CuPy {gpu['cupy']}."
    )
