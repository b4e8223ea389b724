"""snarkjs and the prover judge each other: keys, proofs and verification keys, both ways."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prover.curves import CURVES


def prover(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prover", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def succeed(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture
def accepted_by_snarkjs(snarkjs):
    def check(key: Path, public: Path, proof: Path) -> bool:
        result = snarkjs("groth16", "verify", key, public, proof)
        assert (result.returncode == 0) == ("OK!" in result.stdout), result.stdout
        return bool(result.returncode == 0)

    return check


def test_snarkjs_accepts_our_proofs(circuit, accepted_by_snarkjs, tmp_path: Path) -> None:
    proof, public = tmp_path / "proof.json", tmp_path / "public.json"
    succeed(prover("prove", circuit.key, circuit.witness, proof, public))
    assert public.read_bytes() == (circuit.folder / "public.json").read_bytes()
    vk = circuit.folder / "verification_key.json"
    assert accepted_by_snarkjs(vk, public, proof)
    content = json.loads(proof.read_text())
    content["pi_a"], content["pi_c"] = content["pi_c"], content["pi_a"]
    proof.write_text(json.dumps(content))
    assert not accepted_by_snarkjs(vk, public, proof)


def test_our_keys_serve_snarkjs(circuit, snarkjs, accepted_by_snarkjs, tmp_path: Path) -> None:
    key, vk = tmp_path / "circuit.zkey", tmp_path / "vk.json"
    proof, public = tmp_path / "proof.json", tmp_path / "public.json"
    succeed(prover("setup", circuit.r1cs, "-o", key, "--insecure-dev-key"))

    theirs = tmp_path / "their_vk.json"
    succeed(snarkjs("zkey", "export", "verificationkey", key, theirs))
    succeed(prover("export-vk", key, vk))
    assert vk.read_bytes() == theirs.read_bytes()

    succeed(snarkjs("groth16", "prove", key, circuit.witness, proof, public))
    succeed(prover("verify", vk, public, proof))
    succeed(prover("prove", key, circuit.witness, proof, public))
    assert accepted_by_snarkjs(vk, public, proof)


def test_our_keys_can_be_contributed_to(
    multiplier, snarkjs, accepted_by_snarkjs, tmp_path: Path
) -> None:
    key, after, vk = tmp_path / "before.zkey", tmp_path / "after.zkey", tmp_path / "vk.json"
    proof, public = tmp_path / "proof.json", tmp_path / "public.json"
    succeed(prover("setup", multiplier.r1cs, "-o", key, "--insecure-dev-key"))
    succeed(snarkjs("zkey", "contribute", key, after, "--name=test", "-e=some entropy"))
    succeed(prover("export-vk", after, vk))
    succeed(prover("prove", after, multiplier.witness, proof, public))
    assert accepted_by_snarkjs(vk, public, proof)


# snarkjs calls all of these valid. Each changes one of the three files.


def unreduced(files: dict[str, Any], q: int) -> None:
    files["proof"]["pi_a"][0] = str(int(files["proof"]["pi_a"][0]) + q)


def hexadecimal(files: dict[str, Any], q: int) -> None:
    files["proof"]["pi_a"][0] = hex(int(files["proof"]["pi_a"][0]))


def leading_zeros(files: dict[str, Any], q: int) -> None:
    files["proof"]["pi_a"][0] = "00" + files["proof"]["pi_a"][0]


def projective(files: dict[str, Any], q: int) -> None:
    x, y, _ = map(int, files["proof"]["pi_a"])
    files["proof"]["pi_a"] = [str(x * 49 % q), str(y * 343 % q), "7"]


def fourth_coordinate(files: dict[str, Any], q: int) -> None:
    files["proof"]["pi_a"].append("9")


def other_protocol(files: dict[str, Any], q: int) -> None:
    files["proof"]["protocol"] = "plonk"


def other_curve(files: dict[str, Any], q: int) -> None:
    files["proof"]["curve"] = "secp256k1"


def signal_as_number(files: dict[str, Any], q: int) -> None:
    files["public"] = [int(signal) for signal in files["public"]]


def wrong_count_in_the_key(files: dict[str, Any], q: int) -> None:
    files["verification_key"]["nPublic"] += 2


def extra_point_in_the_key(files: dict[str, Any], q: int) -> None:
    files["verification_key"]["IC"].append(files["verification_key"]["IC"][0])


@pytest.mark.parametrize(
    "change",
    [
        unreduced,
        hexadecimal,
        leading_zeros,
        projective,
        fourth_coordinate,
        other_protocol,
        other_curve,
        signal_as_number,
        wrong_count_in_the_key,
        extra_point_in_the_key,
    ],
)
@pytest.mark.parametrize("curve_name", ["bn128"])
def test_we_refuse_what_snarkjs_accepts(
    multiplier, change, accepted_by_snarkjs, tmp_path: Path
) -> None:
    names = ("verification_key", "public", "proof")
    files = {name: json.loads((multiplier.folder / f"{name}.json").read_text()) for name in names}
    change(files, CURVES[multiplier.curve].q)
    paths = [tmp_path / f"{name}.json" for name in names]
    for path, name in zip(paths, names, strict=True):
        path.write_text(json.dumps(files[name]))
    assert accepted_by_snarkjs(*paths)
    assert prover("verify", *paths).returncode == 2
