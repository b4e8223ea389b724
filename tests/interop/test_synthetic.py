"""The circuits that the pipeline is measured on, judged by snarkjs: satisfied, and proved."""

import subprocess
import sys
from pathlib import Path

from bench.synthetic import Synthetic
from prover.curves import CURVES

SATISFIED = "WITNESS CHECKING FINISHED SUCCESSFULLY"


def prover(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "prover", *words], check=True, timeout=120)


def test_snarkjs_finds_it_satisfied(curve_name: str, snarkjs, tmp_path: Path) -> None:
    synthetic = Synthetic(11, CURVES[curve_name])  # two chains
    circuit, witness = synthetic.write_circuit(tmp_path), synthetic.write_witness(tmp_path, 3)
    assert SATISFIED in snarkjs("wtns", "check", circuit, witness).stdout
    spoilt = bytearray(witness.read_bytes())
    spoilt[-32] ^= 1
    witness.write_bytes(spoilt)
    assert SATISFIED not in snarkjs("wtns", "check", circuit, witness).stdout


def test_snarkjs_verifies_its_proof(curve_name: str, snarkjs, tmp_path: Path) -> None:
    synthetic = Synthetic(6, CURVES[curve_name])
    circuit, witness = synthetic.write_circuit(tmp_path), synthetic.write_witness(tmp_path, 0)
    key, vk, proof, public = (tmp_path / name for name in ("k.zkey", "vk", "proof", "public"))
    prover("setup", circuit, "-o", key, "--insecure-dev-key")
    prover("export-vk", key, vk)
    prover("prove", key, witness, proof, public)
    assert "OK!" in snarkjs("groth16", "verify", vk, public, proof).stdout
