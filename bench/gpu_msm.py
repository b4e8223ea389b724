"""Multi-scalar multiplication on the GPU: checked against the CPU first, then timed.

python -m bench.gpu_msm OUT [--curves bn128 bls12381] [--groups 1 2] [--largest 24] [--seconds 240]

Writes OUT/gpu_msm.json: the checks that failed, milliseconds (median of CUDA events), points a
second, fractions of the measured rate of the arithmetic, registers of every kernel. What fails is
printed, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from bench import gpu_inputs
from prover.backends.cpu import _cpu
from prover.backends.cuda import msm
from prover.backends.cuda.program import Program, compiled, msm_program
from prover.backends.cuda.windows import Windows
from prover.curves import CURVES, Curve

BENCH_KERNELS = Path(__file__).parent / "gpu_kernels.cu"
RUNS = 5
MIX = "mix 35/35/30"
LARGEST_GROUP_2 = 22


class Timed:
    """Kernels of a program, each launch between two events."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._events: list[tuple[str, Any, Any]] = []

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        self._program.launch(name, blocks, threads, *arguments)
        end.record()
        self._events.append((name, begin, end))

    def resident_blocks(self, name: str, threads: int) -> int:
        return self._program.resident_blocks(name, threads)

    def to_host(self, data: Any) -> NDArray[np.uint8]:
        return self._program.to_host(data)

    def milliseconds(self) -> dict[str, float]:
        """The time of each kernel, over its launches."""
        cupy.cuda.Device().synchronize()
        out: dict[str, float] = defaultdict(float)
        for name, begin, end in self._events:
            out[name] += cupy.cuda.get_elapsed_time(begin, end)
        return {name: round(ms, 3) for name, ms in out.items()}


class Msm:
    """One group's multiplication with its workspaces, for up to ``n`` points."""

    def __init__(self, curve: Curve, group: int, n: int) -> None:
        self.curve, self.group = curve, group
        self.program = msm_program(curve, group)
        self.sort_room = cupy.empty(msm.sort_workspace(curve, n), np.uint8)
        self.add_room = cupy.empty(msm.add_workspace(curve, group, n, self.program), np.uint8)

    def start(self, points: Any, scalars: Any, kernels: Any = None) -> tuple[Any, Windows]:
        kernels = kernels or self.program
        digits = msm.sort_scalars(kernels, self.curve, scalars, self.sort_room)
        out = msm.add_points(kernels, self.curve, self.group, points, digits, self.add_room)
        return out, digits.windows

    def median_ms(self, points: Any, scalars: Any) -> float:
        return median_ms(lambda: self.start(points, scalars))

    def run(self, points: Any, scalars: Any) -> NDArray[np.uint8]:
        out, _ = self.start(points, scalars)
        return msm.affine(self.curve, self.group, self.program.to_host(out)).reshape(-1)


class Report:
    """What was found, written after every step."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "gpu_msm.json"
        self.data: dict[str, Any] = {
            "checks": {"passed": 0, "failed": []},
            "rates": {},
            "times": [],
            "kernels": [],
            "seconds": {},
        }

    def check(self, name: str, passed: bool) -> None:
        if passed:
            self.data["checks"]["passed"] += 1
        else:
            self.data["checks"]["failed"].append(name)
            print(f"FAILED {name}", flush=True)

    def save(self) -> None:
        self._path.write_text(json.dumps(self.data, indent=1) + "\n")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Goes on after a failure of what is inside."""
        start = time.perf_counter()
        try:
            yield
        except Exception:
            self.check(f"{name}: {traceback.format_exc(limit=-3)}", False)
        cupy.get_default_memory_pool().free_all_blocks()
        self.data["seconds"][name] = round(time.perf_counter() - start, 1)
        self.save()


def median_ms(work: Callable[[], object], runs: int = RUNS) -> float:
    """Median time of ``runs`` calls after one, by events."""
    work()
    times = []
    for _ in range(runs):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end))
    return float(statistics.median(times))


def compile_all(curves: list[str], groups: list[int]) -> None:
    """Fill CuPy's cache, one process a program."""
    words = [[curve, "sort", "0"] for curve in curves]
    words += [[c, file, str(g)] for c in curves for g in groups for file in ("msm", "bench")]
    started = [
        subprocess.Popen([sys.executable, "-m", "bench.gpu_msm", "--compile", *word])
        for word in words
    ]
    for process in started:
        process.wait()


def compile_one(curve: str, file: str, group: str) -> None:
    """Compile what `compile_all` asked for."""
    number = int(group) or None
    path = BENCH_KERNELS if file == "bench" else Path(msm.__file__).parent / f"{file}.cu"
    compiled(curve, path, number)


def check_fields(report: Report, curve: Curve, group: int) -> None:
    """Every law of the fields on random and extreme limbs, against the CPU's arithmetic."""
    program = bench_program(curve, group)
    rng = np.random.default_rng(3)
    n = 1 << 16
    sets = {"base": (curve.q, curve.coordinate_bytes, "base_laws")}
    sets["scalar"] = (curve.r, 32, "scalar_laws")
    for name, (modulus, width, kernel) in sets.items():
        check_laws(
            report, curve, name, program, kernel, gpu_inputs.elements(n, width, modulus, rng)
        )
    if group == 2:
        pairs = gpu_inputs.elements(2 * n, curve.coordinate_bytes, curve.q, rng).reshape(n, -1)
        check_laws(report, curve, "extension", program, "coordinate_laws", pairs)


def check_laws(
    report: Report, curve: Curve, name: str, program: Program, kernel: str, x: NDArray[np.uint8]
) -> None:
    """Five laws in one kernel."""
    y = x[np.random.default_rng(5).permutation(len(x))]
    out = cupy.empty((5, *x.shape), np.uint8)
    arguments = (cupy.asarray(x), cupy.asarray(y), np.uint32(len(x)), out)
    program.launch(kernel, -(-len(x) // 128), 128, *arguments)
    host = cupy.asnumpy(out)
    for i, law in enumerate(("add", "sub", "mul", "sqr", "neg")):
        expected = np.empty_like(x)
        _cpu._test_operation("portable", curve.name, name, law, x, y, expected)
        report.check(f"{curve.name} {name} {law}", np.array_equal(host[i], expected))


def check_msm(report: Report, curve: Curve, group: int) -> None:
    """Every kind of scalars and points, small, against the CPU backend."""
    rng = np.random.default_rng(17)
    largest = 20_000 if group == 1 else 5_000
    once = Msm(curve, group, largest)
    base = gpu_inputs.few_points(curve, group, rng)
    for n in (1, 2, 33, 1000, largest):
        for points_kind in gpu_inputs.POINTS if n < largest else gpu_inputs.POINTS[-1:]:
            points = gpu_inputs.pick_points(base, n, points_kind, rng)
            for kind in gpu_inputs.SCALARS:
                scalars = gpu_inputs.scalars(curve, n, kind, rng)
                once.sort_room.fill(0xA5)
                once.add_room.fill(0xA5)
                result = once.run(cupy.asarray(points), cupy.asarray(scalars))
                workspace = np.empty(_cpu.msm_workspace(curve.name, group, n, 0), np.uint8)
                expected = _cpu.msm(curve.name, group, points, scalars, workspace)
                name = f"{curve.name} G{group} {n} {points_kind} points, {kind} scalars"
                report.check(name, np.array_equal(result, expected.reshape(-1)))


def measure_rates(report: Report, curve: Curve, group: int) -> None:
    """Products, squares and mixed additions a second, when nothing else is done."""
    program = bench_program(curve, group)
    rates = report.data["rates"].setdefault(curve.name, {})
    rounds = 2000 if group == 1 else 300

    def rate(kernel: str, item: int, per_round: int, *, reads_points: bool) -> float:
        blocks = 4 * program.resident_blocks(kernel, 128)
        data = cupy.full(blocks * 128 * item, 0x11, np.uint8)
        arguments: tuple[Any, ...] = (data, np.uint32(rounds))
        if reads_points:
            arguments = (data, cupy.empty(2 * data.size, np.uint8), np.uint32(rounds))
        ms = median_ms(lambda: program.launch(kernel, blocks, 128, *arguments), 3)
        return float(blocks * 128 * rounds * per_round / ms / 1e6)

    if group == 1:
        width = curve.coordinate_bytes
        rates["products"] = rate("multiply_chain", 2 * width, 2, reads_points=False)
        rates["squares"] = rate("square_chain", 2 * width, 2, reads_points=False)
    width = curve.point_bytes(group)
    rates[f"mixed additions G{group}"] = rate("add_chain", width, 1, reads_points=True)
    print(curve.name, {name: f"{value:.2f} G/s" for name, value in rates.items()}, flush=True)


def measure_copy(report: Report) -> None:
    """Bytes a second of a copy within the device, read and written."""
    source = cupy.zeros(1 << 31, np.uint8)
    target = cupy.empty_like(source)
    ms = median_ms(lambda: target.data.copy_from_device_async(source.data, source.nbytes))
    report.data["rates"]["copy"] = 2 * source.nbytes / ms / 1e9
    print(f"copies {report.data['rates']['copy']:.2f} TB/s", flush=True)


def measure_msm(report: Report, curve: Curve, group: int, logs: list[int], until: float) -> None:
    """Times of sizes 2^log, each result checked: the points are multiples of one."""
    points = multiples(curve, group, 1 << logs[-1])
    rng = np.random.default_rng(23)
    additions = report.data["rates"].get(curve.name, {}).get(f"mixed additions G{group}")
    kinds = {kind: gpu_inputs.scalars(curve, len(points), kind, rng) for kind in ("random", MIX)}
    for log in logs:
        n = 1 << log
        once = Msm(curve, group, n)
        for kind, all_scalars in kinds.items():
            scalars = all_scalars[:n]
            if time.monotonic() > until:
                report.check(f"out of time before {curve.name} G{group} 2^{log}", False)
                return
            on_device = cupy.asarray(scalars)
            result = once.run(points[:n], on_device)
            expected = gpu_inputs.sum_of_multiples(curve, group, scalars)
            name = f"{curve.name} G{group} 2^{log} {kind}"
            report.check(name, np.array_equal(result, expected))
            ms = once.median_ms(points[:n], on_device)
            timed = Timed(once.program)
            _, windows = once.start(points[:n], on_device, timed)
            row = {
                "curve": curve.name,
                "group": group,
                "log": log,
                "scalars": kind,
                "ms": round(ms, 3),
                "points_per_s": n / ms * 1000,
                "windows": windows.count,
                "width": windows.width,
                "kernels": timed.milliseconds(),
                "workspace": once.sort_room.size + once.add_room.size,
            }
            if additions and kind == "random":
                row["of_additions"] = windows.count * n / (additions * 1e9) / (ms / 1e3)
            report.data["times"].append(row)
            share = f"{100 * row['of_additions']:.0f} %" if "of_additions" in row else ""
            print(f"{name:34} {ms:9.3f} ms  c={windows.width:<3} {share:6}", flush=True)
            kernels = sorted(row["kernels"].items(), key=lambda item: -item[1])
            print("   ", ", ".join(f"{k} {v:.2f}" for k, v in kernels[:7]), flush=True)


def sweep_windows(report: Report, curve: Curve, group: int, log: int) -> None:
    """Times of other window counts, to fit the model of the cost."""
    points, n = multiples(curve, group, 1 << log), 1 << log
    scalars = cupy.asarray(gpu_inputs.scalars(curve, n, "random", np.random.default_rng(29)))
    best = msm.choose_windows(curve, n).count
    rows = {}
    chosen = msm.choose_windows
    try:
        for count in range(best - 2, best + 3):
            windows = Windows(curve.r.bit_length(), count)
            if windows.width > 21:
                continue
            msm.choose_windows = lambda *_, w=windows: w
            once = Msm(curve, group, n)
            rows[f"{count} of {windows.width}"] = round(
                once.median_ms(points, scalars),
                3,
            )
            del once
    finally:
        msm.choose_windows = chosen
    report.data.setdefault("windows", {})[f"{curve.name} G{group} 2^{log}"] = rows
    print(f"{curve.name} G{group} 2^{log} windows: {rows}", flush=True)


def multiples(curve: Curve, group: int, n: int) -> Any:
    """Rows 1 G, 2 G, ..., n G on the device."""
    each = min(n, 64)
    width = curve.point_bytes(group)
    base = cupy.asarray(_cpu.generator(curve.name, group))
    points = cupy.empty((n, width), np.uint8)
    sums = cupy.empty((n, 2 * width), np.uint8)
    arguments = (base, np.uint32(each), np.uint32(n), sums, points)
    program = bench_program(curve, group)
    program.launch("fill_multiples", -(-n // each // 128), 128, *arguments)
    cupy.cuda.Device().synchronize()
    return points


def bench_program(curve: Curve, group: int) -> Program:
    """The kernels beside this file."""
    return Program(compiled(curve.name, BENCH_KERNELS, group))


def describe_kernels(report: Report, curve: Curve, group: int) -> None:
    """Registers and local memory of every kernel, as the driver reports them."""
    program = msm_program(curve, group)
    for name in gpu_inputs.KERNELS:
        kernel = program.function(name)
        row = {"curve": curve.name, "group": group, "kernel": name, "registers": kernel.num_regs}
        row |= {"local_bytes": kernel.local_size_bytes, "shared_bytes": kernel.shared_size_bytes}
        report.data["kernels"].append(row)


def main() -> None:
    """Check, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--curves", nargs="+", default=list(CURVES), choices=list(CURVES))
    parser.add_argument("--groups", nargs="+", type=int, default=[1, 2], choices=[1, 2])
    parser.add_argument("--largest", type=int, default=24, metavar="LOG2")
    parser.add_argument("--seconds", type=float, default=240, help="no new times after these")
    parser.add_argument("--sweep", action="store_true", help="also time other windows, at 2^20")
    parser.add_argument("--compile", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        compile_one(*options.compile)
        return
    if options.out is None:
        parser.error("OUT is missing")
    until = time.monotonic() + options.seconds
    report = Report(options.out)
    report.data["device"] = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    with report.step("compile"):
        compile_all(options.curves, options.groups)
    groups = [(CURVES[curve], group) for curve in options.curves for group in options.groups]
    for task in (describe_kernels, check_fields, check_msm, measure_rates):
        for curve, group in groups:
            with report.step(f"{task.__name__} {curve.name} G{group}"):
                task(report, curve, group)
    with report.step("copies"):
        measure_copy(report)
    for curve, group in groups:
        with report.step(f"times {curve.name} G{group}"):
            largest = options.largest if group == 1 else min(options.largest, LARGEST_GROUP_2)
            measure_msm(report, curve, group, list(range(16, largest + 1, 2)), until)
    if options.sweep:
        for curve, group in groups:
            with report.step(f"windows {curve.name} G{group}"):
                sweep_windows(report, curve, group, 20)
    checks = report.data["checks"]
    print(f"{checks['passed']} checks passed, {len(checks['failed'])} failed")
    print("seconds:", report.data["seconds"])
    sys.exit(bool(checks["failed"]))


if __name__ == "__main__":
    main()
