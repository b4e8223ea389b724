"""Times of the CUDA backend's transforms, products and whole proofs."""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import bigmem
from bench import machine
from bench.gpu_run import Run, events_ms
from bench.gpu_stand_in import WITNESSES, random_scalars, stand_in, terms_of, witness_values
from prover import groth16
from prover.backends import get_backend
from prover.backends.base import Backend
from prover.backends.cuda.backend import CudaBackend
from prover.backends.cuda.matrices import compress
from prover.backends.cuda.program import Program, compiled
from prover.backends.cuda.transform import Transform
from prover.curves import CURVES, Curve
from prover.pipeline.batch import stages

PRODUCTS = Path(__file__).with_name("gpu_products.cu")


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


def measure_transforms(run: Run, logs: list[int]) -> None:
    """Natural to bit-reversed order, back, and between cosets; one vector and three.

    The floor is the time that the products alone take at their measured rate.
    """
    head = ["curve", "N", "split ms", "merge ms", "coset ms", "3 cosets", "split / floor"]
    for log in logs:
        for curve in CURVES.values():
            if not run.has_time():
                return
            x = run.device.upload(random_scalars((3, 1 << log), np.random.default_rng(log)))
            transform = Transform(run.device, curve)
            inner = 10 if log < 20 else 3
            times = [
                events_ms(task, x[0], inner=inner)
                for task in (transform.split, transform.merge, transform.odd_coset)
            ]
            times.append(events_ms(transform.odd_coset, x, inner=inner))
            rate = run.figures.get("products_G_s", {}).get(curve.name)
            floor = log * (1 << log) / 2 / rate / 1e6 if rate else 0.0
            cells = [f"{ms:.3f}" for ms in times]
            share = f"{times[0] / floor:.2f}" if floor else "-"
            run.row("Transforms", head, [curve.title, f"2^{log}", *cells, share])
            split, merge, coset, cosets = times
            run.add(
                "transforms",
                curve=curve.name,
                log=log,
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
    head = ["curve", "N", "witness", "backend", "proof ms", "first s", "GPU MiB at most"]
    for log in sorted({*logs, *cpu_logs}):
        for curve in CURVES.values():
            names = ["cuda"] if log in logs else []
            names += ["cpu"] if log in cpu_logs else []
            for name in names:
                _give_back(run)
                backend = CudaBackend(run.device) if name == "cuda" else get_backend("cpu")
                for kind in WITNESSES:
                    if not run.has_time():
                        return
                    with run.part(f"proof, {name}, {curve.title}, 2^{log}, {kind}"):
                        found = _time_proofs(curve, log, kind, backend)
                        held = run.device.held / machine.MIB if name == "cuda" else 0
                        cells = [curve.title, f"2^{log}", kind, name, f"{found['proof_ms']:.1f}"]
                        first = f"{found['first_s']:.2f}" if kind == WITNESSES[0] else "-"
                        cells += [first, f"{held:.0f}" if held else "-"]
                        run.row("Proofs", head, cells)
                        run.add(
                            "proofs",
                            curve=curve.name,
                            log=log,
                            witness=kind,
                            backend=name,
                            held_mib=held,
                            **found,
                        )
                del backend
    _parts_table(run)


def _give_back(run: Run) -> None:
    gc.collect()
    run.device.free_unused()


def _parts_table(run: Run) -> None:
    proofs = [proof for proof in run.figures.get("proofs", []) if proof["backend"] == "cuda"]
    stages = list(dict.fromkeys(stage for proof in proofs for stage in proof["layers_ms"]))
    head = ["curve", "N", "witness", *stages]
    for proof in proofs:
        cells = [CURVES[proof["curve"]].title, f"2^{proof['log']}", proof["witness"]]
        cells += [f"{proof['layers_ms'].get(stage, 0):.2f}" for stage in stages]
        run.row("Parts of the proofs, ms", head, cells)


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
        seconds = stages(recorded().layers)
        layers.append({name: 1e3 * wall for name, wall in seconds.items()})
    return {
        "proof_ms": 1e3 * statistics.median(walls[1:]),
        "first_s": walls[0],
        "layers_ms": {
            name: statistics.median(some[name] for some in layers[1:]) for name in layers[0]
        },
    }


def kernel_report(run: Run) -> None:
    """Registers and local memory of every kernel that ran."""
    head = ["program", "kernel", "registers", "local bytes"]
    for title, program in run.device.programs().items():
        for name, kernel in program.used().items():
            cells = [title, name, str(kernel.num_regs), str(kernel.local_size_bytes)]
            run.row("Kernels", head, cells)
