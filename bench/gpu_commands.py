"""Wall times of whole commands: keys, single proofs with either backend, batches on one GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.chain import write_chain
from bench.gpu_run import Run
from prover.curves import CURVES, Curve


def measure_commands(run: Run, folder: Path, logs: list[int]) -> None:
    """`prover prove` from its start to its end by size and backend; the best of two each."""
    head = ["curve", "N", "--backend cpu s", "--backend cuda s"]
    for curve in CURVES.values():
        for log in logs:
            name = f"commands of {curve.title}, 2^{log}"
            if not run.may_begin(name):
                continue
            with run.part(name):
                key, witness = make_key(run, folder, curve, log)
                seconds = {
                    backend: min(prove_s(key, witness, "--backend", backend) for _ in range(2))
                    for backend in ("cpu", "cuda")
                }
                cells = [f"{one:.2f}" for one in seconds.values()]
                run.row("prover prove, once", head, [curve.title, f"2^{log}", *cells])
                run.add("commands", curve=curve.name, log=log, **seconds)


def measure_workers(run: Run, folder: Path, log: int, proofs: int) -> None:
    """A batch with one worker, and with two that share one GPU."""
    head = ["curve", "N", "--devices", "proofs", "s", "ms a proof"]
    for curve in CURVES.values():
        name = f"workers of {curve.title}, 2^{log}"
        if not run.may_begin(name):
            continue
        with run.part(name):
            key, witness = make_key(run, folder, curve, log)
            for devices in ("0", "0,0"):
                out = folder / "batch"
                words = [key, witness, "--devices", devices, "--repeat", proofs, "-o", out]
                _prover("batch", *words, "--json", folder / "batch.json")
                figures = json.loads((folder / "batch.json").read_text())
                ms = sorted(1e3 * one["wall_s"] for one in figures["each"])[proofs // 2]
                cells = [curve.title, f"2^{log}", devices, str(proofs)]
                run.row("prover batch", head, [*cells, f"{figures['wall_s']:.2f}", f"{ms:.1f}"])
                run.add(
                    "batches", curve=curve.name, log=log, devices=devices, proofs=proofs,
                    wall_s=figures["wall_s"], median_proof_ms=ms,
                )  # fmt: skip


def measure_large(run: Run, folder: Path, log: int) -> None:
    """A key made on the GPU, a proof with it, and one within 1 GiB of GPU memory."""
    curve = CURVES["bls12381"]
    if not run.may_begin(f"large proofs of {curve.title}, 2^{log}"):
        return
    key, witness = make_key(run, folder, curve, log)
    head = ["curve", "N", "options", "s"]
    for options in ((), ("--device-memory", "1GiB")):
        if run.has_time():
            seconds = prove_s(key, witness, "--backend", "cuda", *options)
            cells = [curve.title, f"2^{log}", " ".join(options) or "-", f"{seconds:.1f}"]
            run.row("prover prove, large", head, cells)
            run.add("large", curve=curve.name, log=log, options=options, seconds=seconds)
    key.unlink()


def make_key(run: Run, folder: Path, curve: Curve, log: int) -> tuple[Path, Path]:
    """Key and witness of a chain of 2^log, made on the GPU; timed, if they are not there yet."""
    key = folder / f"{curve.name}-{log}.zkey"
    if not key.exists():
        circuit, witness = write_chain(folder, log, curve)
        words = [circuit, "-o", key, "--backend", "cuda", "--insecure-dev-key"]
        seconds = _prover("setup", *words)
        circuit.unlink()
        witness.rename(key.with_suffix(".wtns"))
        row = [curve.title, f"2^{log}", f"{seconds:.1f}", f"{key.stat().st_size / 2**20:.0f}"]
        run.row("prover setup --backend cuda", ["curve", "N", "s", "key MiB"], row)
        run.add("setups", curve=curve.name, log=log, seconds=seconds)
    return key, key.with_suffix(".wtns")


def prove_s(key: Path, witness: Path, *options: str) -> float:
    """Seconds of one proof, which the command checks."""
    outputs = (key.with_suffix(".proof.json"), key.with_suffix(".public.json"))
    return _prover("prove", key, witness, *outputs, *options)


def _prover(*words: object) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "prover", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return time.perf_counter() - start
