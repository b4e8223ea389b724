"""From a circuit to a key to a proof that verifies; and what setup refuses."""

import subprocess
import sys
from pathlib import Path

import pytest


def prover(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prover", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def make_key(circuit, path: Path) -> subprocess.CompletedProcess[str]:
    return prover("setup", circuit.r1cs, "-o", path, "--insecure-dev-key")


def test_a_key_proves_and_verifies(circuit, tmp_path: Path) -> None:
    key, vk = tmp_path / "a.zkey", tmp_path / "vk.json"
    proof, public = tmp_path / "proof.json", tmp_path / "public.json"
    assert make_key(circuit, key).returncode == 0
    assert prover("info", "--check", key).returncode == 0
    assert prover("export-vk", key, vk).returncode == 0
    proved = prover("prove", key, circuit.witness, proof, public)
    assert proved.returncode == 0
    assert proved.stderr == ""  # above all no warning that delta is the generator
    assert prover("verify", vk, public, proof).returncode == 0
    assert public.read_text() == (circuit.folder / "public.json").read_text()


def test_the_key_is_called_insecure_and_is_never_the_same(multiplier, tmp_path: Path) -> None:
    keys = [tmp_path / "a.zkey", tmp_path / "b.zkey"]
    for key in keys:
        assert "INSECURE DEVELOPMENT KEY" in make_key(multiplier, key).stderr
    assert keys[0].stat().st_size == keys[1].stat().st_size
    assert keys[0].read_bytes() != keys[1].read_bytes()


def test_keys_do_not_fit_each_other(multiplier, tmp_path: Path) -> None:
    key, vk = tmp_path / "a.zkey", multiplier.folder / "verification_key.json"
    proof, public = tmp_path / "proof.json", tmp_path / "public.json"
    assert make_key(multiplier, key).returncode == 0
    assert prover("prove", key, multiplier.witness, proof, public).returncode == 0
    assert prover("verify", vk, public, proof).returncode == 1


def refused(result: subprocess.CompletedProcess[str], word: str) -> None:
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert word in result.stderr


def test_setup_wants_its_flag(multiplier, tmp_path: Path) -> None:
    key = tmp_path / "a.zkey"
    refused(prover("setup", multiplier.r1cs, "-o", key), "--insecure-dev-key")
    assert not key.exists()


def test_setup_refuses_what_is_no_circuit(multiplier, tmp_path: Path) -> None:
    key = tmp_path / "a.zkey"
    refused(
        prover("setup", multiplier.witness, "-o", key, "--insecure-dev-key"), "r1cs file is needed"
    )
    assert list(tmp_path.iterdir()) == []


def test_setup_refuses_a_circuit_without_constraints(multiplier, sections, tmp_path: Path) -> None:
    empty = sections.read(multiplier.r1cs)
    empty[1][-4:] = bytes(4)
    empty[2] = b""
    path = tmp_path / "empty.r1cs"
    path.write_bytes(empty.encode())
    refused(prover("setup", path, "-o", tmp_path / "a.zkey", "--insecure-dev-key"), "no constraint")


@pytest.mark.parametrize("field", ["wire", "value"])
def test_a_bad_circuit_leaves_no_key(multiplier, sections, tmp_path: Path, field: str) -> None:
    bad = sections.read(multiplier.r1cs)
    begin, size = (4, 4) if field == "wire" else (8, 32)
    bad[2][begin : begin + size] = b"\xff" * size
    path = tmp_path / "bad.r1cs"
    path.write_bytes(bad.encode())
    result = prover("setup", path, "-o", tmp_path / "a.zkey", "--insecure-dev-key")
    assert result.returncode == 2
    assert list(tmp_path.iterdir()) == [path]
