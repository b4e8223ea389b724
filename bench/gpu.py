"""Transforms, sparse products, sums and whole proofs on a GPU: checked first, then timed.

    python -m bench.gpu --json FILE --markdown FILE

Times are medians, of GPU work by CUDA events. Points and witnesses are made up: of the points a few
thousand are different, which costs a sum the same as if all were. What fails is told, and the rest
goes on; the exit code is then 1. After `--seconds`, no further measurement is begun.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

import bigmem
from bench import machine
from bench.kernels import points as different_points
from bench.kernels import scalars as uniform_scalars
from prover import groth16
from prover.backends import get_backend
from prover.backends.base import Backend
from prover.backends.cpu import _cpu
from prover.backends.cuda.backend import CudaBackend
from prover.backends.cuda.device import Bytes, Device
from prover.backends.cuda.matrices import compress
from prover.backends.cuda.program import Program, compiled
from prover.backends.cuda.transform import TILE_LOG, Transform
from prover.curves import CURVES, Curve
from prover.formats.wtns import Witness
from prover.formats.zkey import COEFFICIENT, ProvingKey
from prover.pipeline import single

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
WITNESSES = ("uniform", "35/35/30")
"""Uniform below 2^252; 35 % zeros, 35 % ones, the rest uniform."""

_UNUSED = 3
"""By how much the stand-ins have fewer signals than rows."""

PRODUCTS = Path(__file__).with_name("gpu_products.cu")


@dataclass
class Run:
    """What was found so far."""

    device: Device
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
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
        """Note and tell how a comparison ended."""
        if not equal:
            self.failures.append(name)
        print(f"{'ok' if equal else 'WRONG':<6} {name}", flush=True)

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


def events_ms(work: Callable[..., object], *arguments: object, inner: int = 1) -> float:
    """Median milliseconds of GPU work on the current stream, ``inner`` runs at a time."""
    import cupy

    times: list[float] = []
    for number in range(9):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        for _ in range(inner):
            work(*arguments)
        end.record()
        end.synchronize()
        if number >= 2:  # the first two warm up
            times.append(cupy.cuda.get_elapsed_time(begin, end) / inner)
    return statistics.median(times)


def random_scalars(shape: tuple[int, ...], rng: np.random.Generator) -> Bytes:
    """Rows below both orders."""
    return uniform_scalars(int(np.prod(shape)), rng).reshape(*shape, 32)


def witness_values(kind: str, n: int, rng: np.random.Generator) -> Bytes:
    """``n`` values in standard form of one of `WITNESSES`; the first is one."""
    values = uniform_scalars(n, rng)
    if kind == "35/35/30":
        share = rng.random(n)
        values[share < 0.7] = 0
        values[(share >= 0.35) & (share < 0.7), 0] = 1
    values[0] = 0
    values[0, 0] = 1
    return values


def compile_all() -> None:
    """Fill CuPy's cache of compiled programs, all side by side."""
    programs = [("sort", 0), ("scalars", 0), ("msm", 1), ("msm", 2)]
    command = [sys.executable, "-m", "bench.gpu_msm", "--compile"]
    started = [
        subprocess.Popen([*command, curve, file, str(group)])
        for curve in CURVES
        for file, group in programs
    ]
    for process in started:
        process.wait()


# Checks


def check_transforms(run: Run, largest: int) -> None:
    """Every length, one vector and three, against the CPU; and passes of other depths."""
    rng = np.random.default_rng(1)
    for curve in CURVES.values():
        wrong = []
        for log in range(largest + 1):
            for batch in (1, 3):
                if not _coset_equals(run.device, Transform(run.device, curve), log, batch, rng):
                    wrong.append((log, batch))
        run.check(f"transforms of {curve.title} to 2^{largest} {wrong or ''}", not wrong)
        wrong = [
            (most, log)
            for most in range(5, TILE_LOG + 1)
            for log in (10, 13, 16)
            if not _coset_equals(run.device, Transform(run.device, curve, most), log, 1, rng)
        ]
        run.check(f"passes of 5 to 10 stages of {curve.title} {wrong or ''}", not wrong)


def _coset_equals(
    device: Device, transform: Transform, log: int, batch: int, rng: np.random.Generator
) -> bool:
    x = random_scalars((batch, 1 << log), rng)
    out = device.array(x)
    transform.odd_coset(out)
    for vector in x:
        _cpu.odd_coset(transform.curve.name, vector)
    return np.array_equal(device.download(out), x)


def check_matrices(run: Run) -> None:
    """A product with rows of very unlike lengths against the CPU."""
    for curve in CURVES.values():
        rng = np.random.default_rng(2)
        coefficients = terms(1 << 14, 5000, rng)
        coefficients.view(COEFFICIENT)["constraint"][:3000] = 5
        w = witness_values("35/35/30", 5000, rng)
        out = run.device.empty((2, 1 << 14, 32))
        matrices = compress(coefficients, 1 << 14).to_device(run.device)
        matrices.multiply(run.device, curve, run.device.array(w), out)
        a, b = np.empty((2, 1 << 14, 32), np.uint8)
        _cpu.sparse_product(curve.name, coefficients, w, a, b)
        run.check(
            f"sparse products of {curve.title}", np.array_equal(run.device.download(out), [a, b])
        )


def check_proofs(run: Run, logs: list[int]) -> None:
    """Proofs of the fixtures are the CPU's and verify; so are those of larger stand-ins."""
    cpu = get_backend("cpu")
    for path in sorted(FIXTURES.glob("*/*/circuit.zkey")):
        key, witness = ProvingKey.open(path), Witness.open(path.with_name("witness.wtns"))
        name = f"proof of {path.parent.parent.name}/{path.parent.name}"
        with run.part(name):
            backend = CudaBackend(run.device)
            single.prove(key, witness, backend=backend)  # raises if the proof is invalid
            run.check(name, _proof(key, witness, backend) == _proof(key, witness, cpu))
    for curve in CURVES.values():
        for log in logs:
            for kind in WITNESSES:
                name = f"proof of a {kind} stand-in of {curve.title}, 2^{log}"
                with run.part(name):
                    key, witness = stand_in(curve, log, kind)
                    backend = CudaBackend(run.device)
                    run.check(name, _proof(key, witness, backend) == _proof(key, witness, cpu))


def check_limits(run: Run) -> None:
    """A proof under limits on device memory equals one without."""
    for curve in CURVES.values():
        key, witness = stand_in(curve, 18, "uniform")
        expected = _proof(key, witness, get_backend("cpu"))
        for limit in (1 << 30, 380 << 20, 290 << 20):
            name = f"proof of {curve.title}, 2^18, within {limit >> 20} MiB"
            with run.part(name):
                run.check(name, _proof(key, witness, CudaBackend(Device(limit))) == expected)


def _proof(key: ProvingKey, witness: Witness, backend: Backend) -> bytes:
    proof = groth16.prove(key, witness, backend=backend, r=3, s=5)
    return proof.a.tobytes() + proof.b.tobytes() + proof.c.tobytes()


# What is proved where no real circuit is at hand


def terms(domain: int, signals: int, rng: np.random.Generator) -> Bytes:
    """Three terms a row of either matrix, in the order of the constraints, of few coefficients."""
    records = np.zeros(6 * domain, COEFFICIENT)
    records["matrix"] = np.tile(np.repeat(np.arange(2, dtype=np.uint32), 3), domain)
    records["constraint"] = np.repeat(np.arange(domain, dtype=np.uint32), 6)
    records["signal"] = rng.integers(0, signals, 6 * domain)
    records["value"] = uniform_scalars(50, rng)[rng.integers(0, 50, 6 * domain)]
    return records.view(np.uint8).reshape(-1, COEFFICIENT.itemsize)


@lru_cache(maxsize=1)
def terms_of(log: int) -> Bytes:
    """`terms` of the stand-in of a domain; they take a while to make."""
    return terms(1 << log, (1 << log) - _UNUSED, np.random.default_rng(log))


class _StandIn:
    """What `groth16.prove` asks of a key and a witness; their proof is false."""

    path = "stand-in"
    public = 1

    def __init__(self, curve: Curve, log: int, rng: np.random.Generator) -> None:
        self.curve = curve
        self.domain = 1 << log
        self.signals = self.domain - _UNUSED
        self.coefficients = terms_of(log)
        some = {
            group: different_points(curve.name, group, min(1 << 12, self.domain), rng)
            for group in (1, 2)
        }
        self.h1, b2 = (np.resize(p, (self.domain, p.shape[1])) for p in some.values())
        self.a1 = self.b1 = self.h1[: self.signals]
        self.b2 = b2[: self.signals]
        self.c1 = self.h1[: self.signals - self.public - 1]
        self.alpha1 = self.beta1 = self.delta1 = self.h1[:1]
        self.beta2 = self.delta2 = self.b2[:1]
        self.values = np.empty(0, np.uint8)

    def check(self) -> None:
        pass

    def drop(self, rows: Bytes | None = None) -> None:
        pass


_stand_ins: dict[tuple[str, int], _StandIn] = {}


def stand_in(curve: Curve, log: int, kind: str) -> tuple[ProvingKey, Witness]:
    """A key of domain 2^log and a witness, the same object; the key is made once."""
    rng = np.random.default_rng(log)
    made = _stand_ins.get((curve.name, log))
    if made is None:
        _stand_ins.clear()
        made = _stand_ins[curve.name, log] = _StandIn(curve, log, rng)
    made.values = witness_values(kind, made.signals, rng)
    return cast(ProvingKey, made), cast(Witness, made)


# Measurements


def measure_ceilings(run: Run) -> None:
    """Copies in device memory, and products in either scalar field."""
    device = run.device
    original, copy = device.empty((2 << 30,)), device.empty((2 << 30,))
    original[...] = 7
    milliseconds = events_ms(copy.__setitem__, ..., original)
    run.figures["copy_TB_s"] = 4.294967296 / milliseconds
    print(f"copies {run.figures['copy_TB_s']:.2f} TB/s", flush=True)
    del original, copy
    rng = np.random.default_rng(3)
    for curve in CURVES.values():
        program = Program(compiled(curve.name, PRODUCTS))
        threads, blocks, count = 256, 132 * 16, 256
        x = device.array(random_scalars((2 * threads * blocks,), rng))
        milliseconds = events_ms(program.launch, "products", blocks, threads, x, np.int32(count))
        rate = 2 * count * threads * blocks / milliseconds / 1e6
        run.figures.setdefault("products_G_s", {})[curve.name] = rate
        print(f"products modulo r of {curve.title}: {rate:.1f} G/s", flush=True)


def measure_transforms(run: Run, logs: list[int], depths: list[int]) -> None:
    """Natural to bit-reversed order, back, and between cosets; one vector and three."""
    head = ["curve", "N", "stages/pass", "split ms", "merge ms", "coset ms", "3 cosets", "floor"]
    for log in logs:
        for curve in CURVES.values():
            x = run.device.upload(random_scalars((3, 1 << log), np.random.default_rng(log)))
            for most in depths if log >= TILE_LOG else []:
                if not run.has_time():
                    return
                transform = Transform(run.device, curve, most)
                inner = 10 if log < 20 else 3
                times = [
                    events_ms(task, x[0], inner=inner)
                    for task in (transform.split, transform.merge, transform.odd_coset)
                ]
                times.append(events_ms(transform.odd_coset, x, inner=inner))
                rate = run.figures.get("products_G_s", {}).get(curve.name)
                floor = log * (1 << log) / 2 / rate / 1e6 if rate else 0.0
                cells = [f"{ms:.3f}" for ms in times]
                share = f"{times[0] / floor:.2f}x" if floor else "-"
                name = [curve.name, f"2^{log}", str(most)]
                run.row("Transforms", head, [*name, *cells, share])
                split, merge, coset, cosets = times
                run.add(
                    "transforms",
                    curve=curve.name,
                    log=log,
                    stages=most,
                    split_ms=split,
                    merge_ms=merge,
                    coset_ms=coset,
                    three_cosets_ms=cosets,
                    floor_ms=floor,
                )


def measure_matrices(run: Run, logs: list[int]) -> None:
    """Both products of rows of three terms, and how long a key's matrices take to be made."""
    head = ["curve", "N", "witness", "ms", "compress s"]
    for log in logs:
        rng = np.random.default_rng(log)
        n = 1 << log
        coefficients = terms_of(log)
        start = time.perf_counter()
        matrices = compress(coefficients, n)
        seconds = time.perf_counter() - start
        resident = matrices.to_device(run.device)
        out = run.device.empty((2, n, 32))
        for curve in CURVES.values():
            for kind in WITNESSES:
                if not run.has_time():
                    return
                w = run.device.array(witness_values(kind, n, rng))
                ms = events_ms(resident.multiply, run.device, curve, w, out)
                cells = [curve.name, f"2^{log}", kind, f"{ms:.3f}", f"{seconds:.2f}"]
                run.row("Sparse products", head, cells)
                run.add(
                    "matrices", curve=curve.name, log=log, witness=kind, ms=ms, compress_s=seconds
                )


def measure_proofs(run: Run, logs: list[int], cpu_logs: list[int]) -> None:
    """From the witness in host memory to the proof, without its check; the key resident."""
    head = ["curve", "N", "witness", "backend", "proof ms", "first s", "GPU MiB"]
    stages: dict[str, None] = {}
    for log in sorted({*logs, *cpu_logs}):
        for curve in CURVES.values():
            backends: list[Backend] = []
            backends += [CudaBackend(run.device)] if log in logs else []
            backends += [get_backend("cpu")] if log in cpu_logs else []
            for backend in backends:
                for kind in WITNESSES:
                    if not run.has_time():
                        return
                    name = f"proof, {backend.name}, {curve.title}, 2^{log}, {kind}"
                    with run.part(name):
                        found = _time_proofs(curve, log, kind, backend)
                        stages |= dict.fromkeys(found["layers_ms"])
                        with run.device.use():
                            held = run.device.held / machine.MIB
                        cells = [curve.name, f"2^{log}", kind, backend.name]
                        cells += [f"{found['proof_ms']:.1f}", f"{found['first_s']:.2f}"]
                        run.row("Proofs", head, [*cells, f"{held:.0f}"])
                        print(
                            "    "
                            + ", ".join(f"{k} {v:.1f}" for k, v in found["layers_ms"].items())
                        )
                        run.add(
                            "proofs",
                            curve=curve.name,
                            log=log,
                            witness=kind,
                            backend=backend.name,
                            held_mib=held,
                            **found,
                        )
    table = ["curve", "N", "witness", "backend", *stages]
    rows = [
        [p["curve"], f"2^{p['log']}", p["witness"], p["backend"]]
        + [f"{p['layers_ms'].get(stage, 0):.2f}" for stage in stages]
        for p in run.figures.get("proofs", [])
    ]
    run.tables["Parts of the proofs, ms"] = [table, *rows]


def _time_proofs(curve: Curve, log: int, kind: str, backend: Backend) -> dict[str, Any]:
    key, witness = stand_in(curve, log, kind)
    walls: list[float] = []
    layers: list[dict[str, float]] = []
    begin = time.perf_counter()
    while len(walls) < 6 and (len(walls) < 2 or time.perf_counter() - begin < 10):
        start = time.perf_counter()
        with bigmem.record_layers() as recorded:
            groth16.prove(key, witness, backend=backend)
        walls.append(time.perf_counter() - start)
        (proving,) = recorded().layers
        layers.append({layer.name: 1e3 * layer.wall_s for layer in proving.layers})
    return {
        "proof_ms": 1e3 * statistics.median(walls[1:]),
        "first_s": walls[0],
        "layers_ms": {
            name: statistics.median(some[name] for some in layers[1:]) for name in layers[0]
        },
    }


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


def kernel_report(run: Run) -> None:
    """Registers and local memory of every kernel that ran."""
    head = ["program", "kernel", "registers", "local bytes"]
    for title, program in run.device.programs().items():
        for name, kernel in program.used().items():
            cells = [title, name, str(kernel.num_regs), str(kernel.local_size_bytes)]
            run.row("Kernels", head, cells)


def main() -> int:
    """Check, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--logs", nargs="+", type=int, default=[16, 18, 20, 22, 24])
    parser.add_argument("--depths", nargs="+", type=int, default=[7, 8, 9, 10])
    parser.add_argument("--proofs", nargs="*", type=int, default=[14, 16, 18, 20, 22])
    parser.add_argument("--cpu-proofs", nargs="*", type=int, default=[12, 14, 16])
    parser.add_argument("--largest-check", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300)
    machine.add_result_options(parser)
    options = parser.parse_args()
    device = Device(notify=lambda line: print(line, flush=True))
    run = Run(device, options.seconds)
    run.figures["gpu"] = describe_gpu()
    print(run.figures["gpu"], flush=True)
    parts: list[tuple[str, Callable[[], None]]] = [
        ("compile", compile_all),
        ("check transforms", lambda: check_transforms(run, options.largest_check)),
        ("check matrices", lambda: check_matrices(run)),
        ("check proofs", lambda: check_proofs(run, [13])),
        ("check limits", lambda: check_limits(run)),
        ("ceilings", lambda: measure_ceilings(run)),
        ("transforms", lambda: measure_transforms(run, options.logs, options.depths)),
        ("matrices", lambda: measure_matrices(run, [n for n in options.logs if n <= 22])),
        ("proofs", lambda: measure_proofs(run, options.proofs, options.cpu_proofs)),
        ("kernels", lambda: kernel_report(run)),
    ]
    for name, part in parts:
        start = time.perf_counter()
        with run.part(name), device.use():
            part()
        print(f"-- {name}: {time.perf_counter() - start:.1f} s", flush=True)
        with run.part(f"results after {name}"):
            run.figures["failures"] = run.failures
            machine.write_results(options, run.figures, machine.markdown_page(run.tables))
    print(f"failures: {run.failures or 'none'}", flush=True)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
