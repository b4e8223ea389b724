"""Multi-scalar multiplication on a GPU: checked against the CPU, then timed, kernel by kernel."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import gpu_inputs, machine
from bench.gpu_run import Run, events_ms
from bench.gpu_work import add_work, percent, sort_work
from prover.backends.cpu import _cpu
from prover.backends.cuda import msm
from prover.backends.cuda.program import Program, compiled, msm_program
from prover.backends.cuda.windows import MAX_WIDTH, Windows
from prover.curves import CURVES, Curve

BENCH_KERNELS = Path(__file__).parent / "gpu_kernels.cu"
MIX = "mix 35/35/30"
GROUPS = [(curve, group) for curve in CURVES.values() for group in (1, 2)]


class Timed:
    """Kernels of a program, each launch between two events."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._events: list[tuple[str, Any, Any]] = []

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        import cupy

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
        import cupy

        cupy.cuda.Device().synchronize()
        out: dict[str, float] = defaultdict(float)
        for name, begin, end in self._events:
            out[name] += cupy.cuda.get_elapsed_time(begin, end)
        return {name: round(ms, 3) for name, ms in out.items()}


class Msm:
    """One group's multiplication with its workspaces, for up to ``n`` points."""

    def __init__(self, curve: Curve, group: int, n: int) -> None:
        import cupy

        self.curve, self.group = curve, group
        self.program = msm_program(curve, group)
        self.sort_room = cupy.empty(msm.sort_workspace(curve, n), np.uint8)
        self.add_room = cupy.empty(msm.add_workspace(curve, group, n, self.program), np.uint8)
        self.tail_room = cupy.empty(msm.tail_bytes(curve, group), np.uint8)

    def start(
        self, points: Any, scalars: Any, kernels: Any = None
    ) -> tuple[Any, msm.SortedScalars]:
        kernels = kernels or self.program
        digits = msm.sort_scalars(kernels, self.curve, scalars, self.sort_room)
        given = (points, digits, self.add_room, self.tail_room)
        tail = msm.add_points(kernels, self.curve, self.group, *given)
        return msm.combine(kernels, tail), digits

    def median_ms(self, points: Any, scalars: Any) -> float:
        """Milliseconds from scalars and points on the device to the sum there."""
        return events_ms(self.start, points, scalars)

    def run(self, points: Any, scalars: Any) -> NDArray[np.uint8]:
        out, _ = self.start(points, scalars)
        return msm.affine(self.curve, self.group, self.program.to_host(out)).reshape(-1)


def check_sums(run: Run) -> None:
    """The laws of all fields, and sums of every kind, against the CPU."""
    for curve, group in GROUPS:
        with run.part(f"fields of {curve.title} G{group}"):
            check_fields(run, curve, group)
        with run.part(f"sums of {curve.title} G{group}"):
            check_msm(run, curve, group)


def check_fields(run: Run, curve: Curve, group: int) -> None:
    """Every law of the fields on random and extreme limbs, against the CPU's arithmetic."""
    program = bench_program(curve, group)
    rng = np.random.default_rng(3)
    n = 1 << 16
    sets = {"base": (curve.q, curve.coordinate_bytes, "base_laws")}
    sets["scalar"] = (curve.r, 32, "scalar_laws")
    for name, (modulus, width, kernel) in sets.items():
        check_laws(run, curve, name, program, kernel, gpu_inputs.elements(n, width, modulus, rng))
    if group == 2:
        pairs = gpu_inputs.elements(2 * n, curve.coordinate_bytes, curve.q, rng).reshape(n, -1)
        check_laws(run, curve, "extension", program, "coordinate_laws", pairs)


def check_laws(
    run: Run, curve: Curve, name: str, program: Program, kernel: str, x: NDArray[np.uint8]
) -> None:
    """Five laws in one kernel."""
    import cupy

    y = x[np.random.default_rng(5).permutation(len(x))]
    out = cupy.empty((5, *x.shape), np.uint8)
    arguments = (cupy.asarray(x), cupy.asarray(y), np.uint32(len(x)), out)
    program.launch(kernel, -(-len(x) // 128), 128, *arguments)
    host = cupy.asnumpy(out)
    for i, law in enumerate(("add", "sub", "mul", "sqr", "neg")):
        expected = np.empty_like(x)
        _cpu._test_operation("portable", curve.name, name, law, x, y, expected)
        run.check(f"{curve.name} {name} {law}", np.array_equal(host[i], expected))


def check_msm(run: Run, curve: Curve, group: int) -> None:
    """Every kind of scalars and points, small, against the CPU backend."""
    import cupy

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
                once.tail_room.fill(0xA5)
                result = once.run(cupy.asarray(points), cupy.asarray(scalars))
                workspace = np.empty(_cpu.msm_workspace(curve.name, group, n, 0), np.uint8)
                expected = _cpu.msm(curve.name, group, points, scalars, workspace)
                name = f"{curve.name} G{group} {n} {points_kind} points, {kind} scalars"
                run.check(name, np.array_equal(result, expected.reshape(-1)))


def measure_rates(run: Run) -> None:
    """Products, squares and mixed additions a second, when nothing else is done."""
    for curve, group in GROUPS:
        with run.part(f"rates of {curve.title} G{group}"):
            _measure_rates(run, curve, group)


def _measure_rates(run: Run, curve: Curve, group: int) -> None:
    import cupy

    program = bench_program(curve, group)
    rounds = 2000 if group == 1 else 300

    def rate(kernel: str, item: int, per_round: int, *, reads_points: bool) -> float:
        blocks = 4 * program.resident_blocks(kernel, 128)
        data = cupy.full(blocks * 128 * item, 0x11, np.uint8)
        arguments: tuple[Any, ...] = (data, np.uint32(rounds))
        if reads_points:
            arguments = (data, cupy.empty(2 * data.size, np.uint8), np.uint32(rounds))
        ms = events_ms(program.launch, kernel, blocks, 128, *arguments, runs=3)
        return float(blocks * 128 * rounds * per_round / ms / 1e6)

    rates: dict[str, float] = {}
    if group == 1:
        width = 2 * curve.coordinate_bytes
        rates["products"] = rate("multiply_chain", width, 2, reads_points=False)
        rates["squares"] = rate("square_chain", width, 2, reads_points=False)
    name = f"mixed additions G{group}"
    rates[name] = rate("add_chain", curve.point_bytes(group), 1, reads_points=True)
    run.figures.setdefault("rates_G_s", {}).setdefault(curve.name, {}).update(rates)
    for what, value in rates.items():
        run.row("Ceilings", ["curve", "operation", "G/s"], [curve.title, what, f"{value:.2f}"])


def measure_sums(run: Run, group: int, logs: list[int]) -> None:
    """Times of sizes 2^log, each result checked: the points are multiples of one."""
    for curve in CURVES.values():
        name = f"sums of {curve.title} G{group} to 2^{logs[-1]}"
        run.device.free_unused()
        if run.may_begin(name):
            with run.part(name), run.within_memory(name):
                _measure_sums(run, curve, group, logs)


def _measure_sums(run: Run, curve: Curve, group: int, logs: list[int]) -> None:
    points = multiples(curve, group, 1 << logs[-1])
    rng = np.random.default_rng(23)
    kinds = {kind: gpu_inputs.scalars(curve, len(points), kind, rng) for kind in ("random", MIX)}
    head = ["curve", "group", "n", "scalars", "ms", "M points/s", "of the additions' rate"]
    head += ["of the copies' rate", "bits a window", "workspace MiB", "GPU MiB at most"]
    for log in logs:
        if not run.may_begin(f"sums of {curve.title} G{group}, 2^{log}"):
            continue
        once = Msm(curve, group, 1 << log)
        for kind, all_scalars in kinds.items():
            scalars = all_scalars[: 1 << log]
            name = f"{curve.title} G{group} 2^{log} {kind}"
            row = _time_sum(run, name, once, points[: 1 << log], scalars)
            run.add("sums", curve=curve.name, group=group, log=log, scalars=kind, **row)
            cells = [curve.title, f"G{group}", f"2^{log}", kind, f"{row['ms']:.2f}"]
            cells += [f"{(1 << log) / row['ms'] / 1e3:.0f}", percent(row["share"])]
            cells += [percent(row["copy_share"]), str(row["width"])]
            cells += [f"{row[size] / machine.MIB:.0f}" for size in ("workspace", "most_bytes")]
            run.row("Sums", head, cells)
        del once


def _time_sum(run: Run, name: str, once: Msm, points: Any, scalars: Any) -> dict[str, Any]:
    import cupy

    curve, group = once.curve, once.group
    on_device = cupy.asarray(scalars)
    expected = gpu_inputs.sum_of_multiples(curve, group, scalars)
    run.check(name, np.array_equal(once.run(points, on_device), expected))
    ms = once.median_ms(points, on_device)
    timed = Timed(once.program)
    _, digits = once.start(points, on_device, timed)
    windows = digits.windows
    work = sort_work(windows, len(scalars), digits.dense)
    work += add_work(curve, group, windows, digits.dense, digits.ones_count)
    workspace = once.sort_room.size + once.add_room.size + once.tail_room.size
    return {
        "ms": ms,
        "share": work.arithmetic_share(run.figures, curve, ms),
        "copy_share": work.copy_share(run.figures, ms),
        "windows": windows.count,
        "width": windows.width,
        "additions": sum(work.additions),
        "kernels": timed.milliseconds(),
        "workspace": workspace,
        # There is nothing else on the device that a sum wants.
        "most_bytes": workspace + points.nbytes + on_device.nbytes,
    }


def sweep_windows(run: Run, logs: list[int]) -> None:
    """Times of other numbers of windows, which the model of the cost is fitted to."""
    chosen = msm.choose_windows
    try:
        for curve, group in GROUPS:
            with run.part(f"windows of {curve.title} G{group}"):
                points = multiples(curve, group, 1 << max(logs))
                for log in logs:
                    _sweep(run, curve, group, log, points[: 1 << log])
                    msm.choose_windows = chosen
                del points
            run.device.free_unused()
    finally:
        msm.choose_windows = chosen


def _sweep(run: Run, curve: Curve, group: int, log: int, points: Any) -> None:
    import cupy

    rng = np.random.default_rng(29)
    scalars = cupy.asarray(gpu_inputs.scalars(curve, 1 << log, "random", rng))
    best = msm.choose_windows(curve, 1 << log).count
    for count in range(best - 3, best + 4):
        windows = Windows(curve.r.bit_length(), count)
        if not run.has_time() or not 2 <= windows.width <= MAX_WIDTH:
            continue
        msm.choose_windows = lambda *_, w=windows: w
        once = Msm(curve, group, 1 << log)
        ms = once.median_ms(points, scalars)
        cells = [curve.title, f"G{group}", f"2^{log}", str(count), str(windows.width)]
        cells += [f"{ms:.3f}", "*" if count == best else ""]
        head = ["curve", "group", "n", "windows", "bits", "ms", "chosen"]
        run.row("Windows", head, cells)
        run.add(
            "windows", curve=curve.name, group=group, log=log, count=count, ms=ms,
            width=windows.width, chosen=count == best,
        )  # fmt: skip
        del once


def multiples(curve: Curve, group: int, n: int) -> Any:
    """Rows 1 G, 2 G, ..., n G on the device."""
    import cupy

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
