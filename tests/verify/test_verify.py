"""What the verifier accepts and what it calls false."""

import json
import subprocess
import sys
from pathlib import Path

from prover.formats.zkey import ProvingKey
from prover.verify import VerificationKey


def command(paths: list[Path]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "prover", "verify", *map(str, paths)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_snarkjs_s_proofs_are_valid(files) -> None:
    assert files.verdict() is True


def test_the_key_inside_a_zkey_is_the_exported_one(circuit) -> None:
    inside = VerificationKey.from_zkey(ProvingKey.open(circuit.key))
    exported = VerificationKey.from_json(circuit.folder / "verification_key.json")
    assert inside.to_json() == exported.to_json()
    assert inside.public == exported.public


def test_another_statement_is_false(small) -> None:
    small.content["public"] = ["34"]
    assert small.verdict() is False


def test_the_order_of_public_signals_matters(files) -> None:
    public = files.content["public"]
    files.content["public"] = public[::-1]
    assert files.verdict() is (public == public[::-1])


def test_changed_proofs_are_false(files) -> None:
    q = files.curve.q
    original = json.dumps(files.content["proof"])
    for name in ("pi_a", "pi_b", "pi_c"):
        proof = files.content["proof"] = json.loads(original)
        y = proof[name][1]
        proof[name][1] = str(q - int(y)) if isinstance(y, str) else [str(-int(c) % q) for c in y]
        assert files.verdict() is False
    proof = files.content["proof"] = json.loads(original)
    proof["pi_a"], proof["pi_c"] = proof["pi_c"], proof["pi_a"]
    assert files.verdict() is False


def test_infinity_is_a_point_and_false(small) -> None:
    for name in ("pi_a", "pi_c"):
        kept = small.content["proof"][name]
        small.content["proof"][name] = ["0", "1", "0"]
        assert small.verdict() is False
        small.content["proof"][name] = kept
    small.content["proof"]["pi_b"] = [["0", "0"], ["1", "0"], ["0", "0"]]
    assert small.verdict() is False


def test_the_curve_may_be_absent_from_a_proof(small) -> None:
    del small.content["proof"]["curve"]
    assert small.verdict() is True


def test_exit_codes(small, tmp_path: Path) -> None:
    good = command(small.paths())
    assert (good.returncode, good.stdout, good.stderr) == (0, "valid\n", "")
    small.content["public"] = ["34"]
    false = command(small.paths())
    assert (false.returncode, false.stderr) == (1, "")
    assert false.stdout.startswith("invalid")
    small.content["public"] = ["034"]
    unusable = command(small.paths())
    assert (unusable.returncode, unusable.stdout) == (2, "")
    assert len(unusable.stderr.splitlines()) == 1
    paths = small.paths()
    paths[2] = tmp_path / "missing.json"
    assert command(paths).returncode == 2
