"""Times of the CUDA backend's transforms, products and whole proofs."""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import bigmem
from bench import kernel_resources, machine
from bench.gpu_run import Run, events_ms
from bench.gpu_stand_in import WITNESSES, random_scalars, stand_in, terms_of, witness_values
from bench.gpu_work import percent, proof_work, sparse_work, split_work
from prover import groth16
from prover.backends import get_backend
from prover.backends.base import Backend
from prover.backends.cuda.backend import CudaBackend
from prover.backends.cuda.device import Array
from prover.backends.cuda.matrices import compress
from prover.backends.cuda.program import Program, compiled
from prover.backends.cuda.transform import Transform
from prover.curves import CURVES, Curve
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.pipeline.batch import stages

PRODUCTS = Path(__file__).with_name("gpu_products.cu")

_KEY_SECONDS_A_ROW = 2.5e-6
"""Making a stand-in and compressing its matrices, which is most of a large proof's measurement."""

_DIFFERENT_ROWS = 1 << 20
"""Of a long vector: products take as long whatever the factors are, making these does not."""


def measure_ceilings(run: Run) -> None:
    """Copies in device memory, and products in either scalar field."""
    device = run.device
    original, copy = device.empty((2 << 30,)), device.empty((2 << 30,))
    original[...] = 7
    milliseconds = events_ms(copy.__setitem__, ..., original)
    run.figures["copy_TB_s"] = rate = 4.294967296 / milliseconds
    head = ["curve", "operation", "G/s"]
    run.row("Ceilings", head, ["both", "bytes copied, read and written", f"{1e3 * rate:.0f}"])
    del original, copy
    rng = np.random.default_rng(3)
    for curve in CURVES.values():
        program = Program(compiled(curve.name, PRODUCTS))
        threads, blocks, count = 256, 16 * run.figures["gpu"]["multiprocessors"], 256
        x = device.array(random_scalars((2 * threads * blocks,), rng))
        milliseconds = events_ms(program.launch, "products", blocks, threads, x, np.int32(count))
        rate = 2 * count * threads * blocks / milliseconds / 1e6
        run.figures.setdefault("products_G_s", {})[curve.name] = rate
        run.row("Ceilings", head, [curve.title, "products modulo r", f"{rate:.2f}"])


def measure_transforms(run: Run, logs: list[int]) -> None:
    """Natural to bit-reversed order, back, and between cosets; one vector and three.

    The floor is the time that the products alone take at their measured rate.
    """
    for log in logs:
        for curve in CURVES.values():
            name = f"transforms of {curve.title}, 2^{log}"
            if run.may_begin(name):
                run.device.free_unused()
                with run.within_memory(name):
                    _time_transforms(run, curve, log)


def _time_transforms(run: Run, curve: Curve, log: int) -> None:
    x, transform = _long_vectors(run, log), Transform(run.device, curve)
    inner = 10 if log < 20 else 3 if log < 24 else 1
    split, merge, coset = (
        events_ms(task, x[0], inner=inner)
        for task in (transform.split, transform.merge, transform.odd_coset)
    )
    cosets = events_ms(transform.odd_coset, x, inner=inner)
    work = split_work(log)
    floor = work.arithmetic_ms(run.figures, curve)
    copies = work.copy_share(run.figures, split)
    held = run.device.held / machine.MIB
    head = ["curve", "N", "split ms", "merge ms", "coset ms", "3 cosets", "split / floor"]
    head += ["split, of the copies' rate", "GPU MiB at most"]
    cells = [f"{ms:.3f}" for ms in (split, merge, coset, cosets)]
    cells += [f"{split / floor:.2f}" if floor else "-", percent(copies), f"{held:.0f}"]
    run.row("Transforms", head, [curve.title, f"2^{log}", *cells])
    run.add(
        "transforms", curve=curve.name, log=log, split_ms=split, merge_ms=merge, coset_ms=coset,
        three_cosets_ms=cosets, floor_ms=floor, copy_share=copies, held_mib=held,
    )  # fmt: skip


def _long_vectors(run: Run, log: int) -> Array:
    """Three vectors, of rows that come again after `_DIFFERENT_ROWS`."""
    rows = min(1 << log, _DIFFERENT_ROWS)
    some = run.device.upload(random_scalars((rows,), np.random.default_rng(log)))
    x = run.device.empty((3, 1 << log, some.shape[1]))
    words = x.view(np.uint64).reshape(-1, rows, some.shape[1] // 8)
    words[...] = some.view(np.uint64)
    return x


def measure_matrices(run: Run, logs: list[int]) -> None:
    """Both products of rows of three terms, and how long a key's matrices take to be made."""
    head = ["curve", "N", "witness", "ms", "of the products' rate", "of the copies' rate"]
    head += ["GPU MiB at most", "compress s"]
    for log in logs:
        if not run.may_begin(f"sparse products, 2^{log}"):
            continue
        run.device.free_unused()
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
                values = witness_values(kind, n, rng)
                w = run.device.array(values)
                ms = events_ms(resident.multiply, run.device, curve, w, out)
                nonzero = int(values.max(axis=1)[matrices.entries[:, 0]].astype(bool).sum())
                work = sparse_work(2 * n, len(matrices.entries), n, nonzero)
                products = work.arithmetic_share(run.figures, curve, ms)
                copies = work.copy_share(run.figures, ms)
                held = run.device.held / machine.MIB
                del w  # or the next one would come beside it
                run.device.free_unused()
                cells = [curve.title, f"2^{log}", kind, f"{ms:.3f}", percent(products)]
                cells += [percent(copies), f"{held:.0f}", f"{seconds:.2f}"]
                run.row("Sparse products", head, cells)
                run.add(
                    "matrices", curve=curve.name, log=log, witness=kind, ms=ms, share=products,
                    copy_share=copies, held_mib=held, compress_s=seconds,
                )  # fmt: skip


def measure_proofs(run: Run, logs: list[int], cpu_logs: list[int]) -> None:
    """From the witness in host memory to the proof, without its check; the key resident."""
    before = len(run.figures.get("proofs", []))
    for log in sorted({*logs, *cpu_logs}):
        for curve in CURVES.values():
            names = ["cuda"] if log in logs else []
            names += ["cpu"] if log in cpu_logs else []
            for name in names:
                if run.may_begin(
                    f"proofs, {name}, {curve.title}, 2^{log}", _KEY_SECONDS_A_ROW * (1 << log)
                ):
                    _measure_backend(run, curve, log, name)
    _parts_table(run, before)


def _measure_backend(run: Run, curve: Curve, log: int, name: str) -> None:
    head = ["curve", "N", "witness", "backend", "proof ms", "of the arithmetic's rate"]
    head += ["of the copies' rate", "first s", "GPU MiB at most"]
    _give_back(run)
    backend = CudaBackend(run.device) if name == "cuda" else get_backend("cpu")
    for kind in WITNESSES:
        with run.part(f"proof, {name}, {curve.title}, 2^{log}, {kind}"):
            key, witness = stand_in(curve, log, kind)
            found = _time_proofs(key, witness, backend)
            shares: list[float | None] = [None, None]
            held = 0.0
            if name == "cuda":
                work = proof_work(curve, log, witness.values, len(key.coefficients))
                shares = [
                    work.arithmetic_share(run.figures, curve, found["proof_ms"]),
                    work.copy_share(run.figures, found["proof_ms"]),
                ]
                held = run.device.held / machine.MIB
            cells = [curve.title, f"2^{log}", kind, name, f"{found['proof_ms']:.1f}"]
            cells += [percent(share) for share in shares]
            cells.append(f"{found['first_s']:.2f}" if kind == WITNESSES[0] else "-")
            cells.append(f"{held:.0f}" if held else "-")
            run.row("Proofs", head, cells)
            run.add(
                "proofs", curve=curve.name, log=log, witness=kind, backend=name, held_mib=held,
                share=shares[0], copy_share=shares[1], **found,
            )  # fmt: skip


def _give_back(run: Run) -> None:
    gc.collect()
    run.device.free_unused()


def _parts_table(run: Run, before: int) -> None:
    """Of the proofs behind those that were there before."""
    every = run.figures.get("proofs", [])[before:]
    proofs = [proof for proof in every if proof["backend"] == "cuda"]
    stages = list(dict.fromkeys(stage for proof in proofs for stage in proof["layers_ms"]))
    head = ["curve", "N", "witness", *stages]
    for proof in proofs:
        cells = [CURVES[proof["curve"]].title, f"2^{proof['log']}", proof["witness"]]
        cells += [f"{proof['layers_ms'].get(stage, 0):.2f}" for stage in stages]
        run.row("Parts of the proofs, ms", head, cells)


def _time_proofs(key: ProvingKey, witness: Witness, backend: Backend) -> dict[str, Any]:
    first, _ = _time_proof(key, witness, backend)
    walls: list[float] = []
    layers: list[dict[str, float]] = []
    begin = time.perf_counter()
    while len(walls) < 5 and (not walls or time.perf_counter() - begin < 10):
        wall, seconds = _time_proof(key, witness, backend)
        walls.append(wall)
        layers.append({name: 1e3 * s for name, s in seconds.items()})
    return {
        "proof_ms": 1e3 * statistics.median(walls),
        "first_s": first,
        "layers_ms": {name: statistics.median(some[name] for some in layers) for name in layers[0]},
    }


def _time_proof(
    key: ProvingKey, witness: Witness, backend: Backend
) -> tuple[float, dict[str, float]]:
    start = time.perf_counter()
    with bigmem.record_layers() as recorded:
        groth16.prove(key, witness, backend=backend)
    return time.perf_counter() - start, stages(recorded().layers)


def kernel_report(run: Run) -> None:
    """Registers, local memory and spills of every kernel, for this GPU."""
    head = ["program", "kernel", "registers", "local bytes", "spilled"]
    compiler, architecture = kernel_resources.of_cupy()
    for title, kernels in kernel_resources.resources(compiler, architecture):
        for kernel in kernels:
            figures = (kernel.registers, kernel.local, kernel.spilled)
            run.row("Kernels", head, [title, kernel.name, *map(str, figures)])
