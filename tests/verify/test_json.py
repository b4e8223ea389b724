"""Our JSON files are byte for byte those of snarkjs."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np

from prover.curves import CURVES
from prover.formats.proof_json import (
    point_to_json,
    read_proof,
    read_public,
    write_proof,
    write_public,
)


def test_a_proof_is_written_as_it_was_read(circuit) -> None:
    path = circuit.folder / "proof.json"
    file = io.BytesIO()
    write_proof(file, read_proof(path, CURVES[circuit.curve]))
    assert file.getvalue() == path.read_bytes()


def test_public_signals_are_written_as_they_were_read(circuit) -> None:
    path = circuit.folder / "public.json"
    file = io.BytesIO()
    write_public(file, read_public(path, CURVES[circuit.curve]))
    assert file.getvalue() == path.read_bytes()


def test_infinity_is_written_as_snarkjs_does(multiplier) -> None:
    curve = CURVES[multiplier.curve]
    zero = np.zeros(curve.point_bytes(1), np.uint8), np.zeros(curve.point_bytes(2), np.uint8)
    assert point_to_json(curve, zero[0]) == ["0", "1", "0"]
    assert point_to_json(curve, zero[1]) == [["0", "0"], ["1", "0"], ["0", "0"]]


def test_export_vk_writes_snarkjs_s_file(circuit, tmp_path: Path) -> None:
    target = tmp_path / "vk.json"
    command = [sys.executable, "-m", "prover", "export-vk", str(circuit.key), str(target)]
    subprocess.run(command, check=True, timeout=60)
    assert target.read_bytes() == (circuit.folder / "verification_key.json").read_bytes()


def test_export_vk_does_not_overwrite_the_key(multiplier, tmp_path: Path) -> None:
    key = tmp_path / "a.zkey"
    key.write_bytes(multiplier.key.read_bytes())
    command = [sys.executable, "-m", "prover", "export-vk", str(key), str(key)]
    result = subprocess.run(command, capture_output=True, timeout=60)
    assert result.returncode == 2
    assert key.read_bytes() == multiplier.key.read_bytes()
