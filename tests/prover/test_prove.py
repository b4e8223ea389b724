"""Proofs of real snarkjs files, and what the command promises about them."""

import json
import os
import re
import struct
import subprocess
import sys

import pytest

import bigmem
from prover.backends import get_backend
from prover.curves import CURVES
from prover.errors import UnavailableBackend, UnsatisfiedCircuit
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.groth16 import prove as groth16_prove
from prover.pipeline import single
from prover.pipeline.batch import stages
from prover.verify import VerificationKey, verify

ALLOCATORS = ("system", "mapped", "dontneed", "deferred", "recycle")
STAGES = ["witness", "sparse", "ntt", "msm H", "msm A", "msm B1", "msm B2", "msm C", "assembly"]
PHASES = ["split vectors", "prep MSM", "batch addition", "tail MSMs", "drop"]
LAYERS = [
    ("sums", 2), ("allocate", 3), ("witness", 3),
    ("NTT/MSM-H", 3), ("allocate", 4), ("sparse", 4), ("ntt", 4), ("msm H", 4),
    *((name, 5) for name in PHASES), ("msm A", 3), *((name, 4) for name in PHASES), ("msm B1", 3),
    *((name, 4) for name in PHASES), ("B in G2", 3), ("allocate", 4), ("msm B2", 4),
    *((name, 5) for name in PHASES), ("msm C", 3), *((name, 4) for name in PHASES),
    ("epilogue", 2), ("assembly", 3),
]  # fmt: skip


def bytes_of(proof):
    return proof.a.tobytes() + proof.b.tobytes() + proof.c.tobytes()


@pytest.fixture
def opened(circuit):
    return ProvingKey.open(circuit.key), Witness.open(circuit.witness)


def test_proofs_of_the_fixtures_verify(circuit, prove, folder, valid):
    outcome = prove(circuit.key, circuit.witness)
    assert outcome == (type(outcome))(0, "", "")
    assert valid(circuit)
    ours = json.loads((folder / "public.json").read_text())
    assert ours == json.loads((circuit.folder / "public.json").read_text())
    assert sorted(path.name for path in folder.iterdir()) == ["proof.json", "public.json"]


@pytest.mark.parametrize("name", ALLOCATORS)
def test_proofs_under_every_allocator(circuit, prove, valid, name):
    assert prove(circuit.key, circuit.witness, "--allocator", name).code == 0
    assert valid(circuit)


def test_the_allocator_changes_no_byte_of_a_proof(opened):
    key, witness = opened
    r, s = 123456789, key.curve.r - 1
    proofs = {
        bytes_of(
            groth16_prove(
                key, witness, backend=get_backend(), allocator=bigmem.make(name), r=r, s=s
            )
        )
        for name in ALLOCATORS
    }
    assert len(proofs) == 1


def test_the_number_of_threads_changes_no_byte_of_a_proof(opened):
    key, witness = opened
    proofs = {
        bytes_of(groth16_prove(key, witness, backend=get_backend(threads=threads), r=5, s=7))
        for threads in (0, 1, 2, 3)
    }
    assert len(proofs) == 1


@pytest.mark.parametrize("blinding", [(0, 0), (0, 1), (1, 0), (-1, -1)])
def test_extreme_blinding_verifies(opened, blinding):
    key, witness = opened
    r, s = (scalar % key.curve.r for scalar in blinding)
    statement = single.prove(key, witness, backend=get_backend(), r=r, s=s)
    assert verify(VerificationKey.from_zkey(key), statement.public, statement.proof)


def test_every_vector_of_a_proof_comes_from_the_allocator_and_is_released(opened):
    key, witness = opened
    allocator = bigmem.make("mapped")
    before = allocator.stats()
    groth16_prove(key, witness, backend=get_backend(), allocator=allocator)
    after = allocator.stats()
    # witness, a, b, c, and the workspace of five sums
    assert after.allocations - before.allocations == 9
    assert after.releases - before.releases == 9
    assert after.live == before.live
    vectors = witness.values.nbytes + 3 * 32 * key.domain
    assert after.peak_live >= vectors


def test_blinding_differs_between_runs(multiplier, prove, folder):
    proofs = set()
    for _ in range(3):
        assert prove(multiplier.key, multiplier.witness).code == 0
        proofs.add((folder / "proof.json").read_bytes())
    assert len(proofs) == 3


def test_deterministic_proofs_say_so(multiplier, prove, folder, valid):
    proofs = set()
    for seed in ("one", "one", "two"):
        outcome = prove(multiplier.key, multiplier.witness, "--insecure-deterministic", seed)
        assert outcome.code == 0
        assert "for tests only" in outcome.err
        assert valid(multiplier)
        proofs.add((folder / "proof.json").read_bytes())
    assert len(proofs) == 2


def test_a_bad_witness_is_refused_in_every_signal(circuit, sections, tmp_path):
    key = ProvingKey.open(circuit.key)
    used = {int(s) for s in key.coefficients.view("<u4").reshape(-1, 11)[:, 2]}
    for signal in sorted(used - {0})[:: max(1, len(used) // 12)]:
        raw = sections.read(circuit.witness)
        at = 32 * signal
        value = int.from_bytes(raw[2][at : at + 32], "little")
        raw[2][at : at + 32] = ((value + 1) % key.curve.r).to_bytes(32, "little")
        path = tmp_path / "changed.wtns"
        path.write_bytes(raw.encode())
        with pytest.raises(UnsatisfiedCircuit):
            single.prove(key, Witness.open(path), backend=get_backend())


def test_no_check_writes_what_does_not_verify(multiplier, sections, tmp_path, prove, valid):
    raw = sections.read(multiplier.witness)
    raw[2][96] ^= 1
    path = tmp_path / "changed.wtns"
    path.write_bytes(raw.encode())
    outcome = prove(multiplier.key, path, "--no-check")
    assert (outcome.code, outcome.err) == (0, "")
    assert not valid(multiplier)


def test_a_key_without_contribution_is_warned_of_on_success_only(
    multiplier, sections, tmp_path, prove, cli, refused, folder
):
    from prover.backends.cpu import _cpu

    raw = sections.read(multiplier.key)
    for group in (1, 2):  # delta1 lies before delta2, which ends the section
        point = _cpu.generator(multiplier.curve, group).tobytes()
        end = len(raw[2]) - (2 - group) * 2 * len(point)
        raw[2][end - len(point) : end] = point
    raw[10] = raw[10][:64] + struct.pack("<I", 0)
    key = tmp_path / "fresh.zkey"
    key.write_bytes(raw.encode())
    # The fixture's C and H points do not fit this delta, so that only an unchecked proof is made.
    refused(prove(key, multiplier.witness), folder)
    outcome = prove(key, multiplier.witness, "--no-check")
    assert outcome.code == 0
    (line,) = outcome.err.splitlines()
    assert "no contribution" in line
    assert "no contribution" in cli("info", key).out
    assert "no contribution" not in cli("info", multiplier.key).out


def test_timings_name_every_stage(multiplier, prove):
    outcome = prove(multiplier.key, multiplier.witness, "--timings")
    assert outcome.code == 0
    _, *rows, _ = outcome.err.splitlines()
    named = [re.split(r"\s{2,}", row.strip())[0] for row in rows]
    depths = [(len(row) - len(row.lstrip())) // 2 for row in rows]
    assert list(zip(named, depths, strict=True)) == [
        ("proof", 0), ("key check", 1), ("prove", 1), *LAYERS, ("check", 1), ("write", 1),
    ]  # fmt: skip


def test_layers_add_up_over_proofs(opened):
    key, witness = opened
    found = []
    with bigmem.record_layers() as recorded:
        for _ in range(2):
            groth16_prove(key, witness, backend=get_backend())
            (proving,) = recorded().layers
            found.append(proving)
    first, both = found
    assert (first.name, first.calls, both.calls) == ("prove", 1, 2)
    assert list(stages((both,))) == ["allocate", *STAGES]
    for once, twice in zip(walk(first), walk(both), strict=True):
        assert (once.name, 2 * once.calls) == (twice.name, twice.calls)
        assert twice.wall_s > once.wall_s > 0
        assert twice.inner_s == pytest.approx(sum(one.wall_s for one in twice.layers))
    several = [(one.name, one.calls) for one in walk(first) if one.calls > 1]
    assert several == [("allocate", 4), ("allocate", 2)]  # w, A, B1, C; the vectors and H
    assert both.layers[0].gap_s > first.layers[0].gap_s > 0


def walk(layer):
    yield layer
    for inside in layer.layers:
        yield from walk(inside)


def test_info_tells_facts_and_no_witness_value(circuit, cli):
    key = ProvingKey.open(circuit.key)
    out = cli("info", circuit.key).out.split()
    assert {circuit.curve, str(key.signals), str(key.domain), "zkey"} <= set(out)
    assert cli("info", "--check", circuit.key).code == 0
    assert cli("info", "--check", circuit.r1cs).code == 0
    witness = cli("info", circuit.witness)
    assert witness.code == 0
    values = {
        int.from_bytes(row.tobytes(), "little") for row in Witness.open(circuit.witness).values
    }
    words = [word for line in witness.out.splitlines()[1:] for word in line.split()]
    told = {int(word) for word in words if word.isdecimal()}
    assert told == {key.signals}
    assert not values & (told - {key.signals})


def test_backends_that_are_not_there(multiplier, prove, refused, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UnavailableBackend, match="no backend 'tpu'"):
        get_backend("tpu")
    line = refused(prove(multiplier.key, multiplier.witness, "--backend", "cuda"), folder)
    assert "--backend cpu" in line


@pytest.mark.parametrize(
    "options",
    [
        ("--allocator", "no-such-allocator"),
        ("--backend", "tpu"),
        ("--threads", "-1"),
        ("--threads", "many"),
        ("--threads", "1025"),
        ("--threads", "9" * 5000),
        ("--threads", "\u0663"),
        ("--threads", "+1"),
        ("--insecure-det", "no abbreviation of what must be meant"),
        ("--device-memory", "lots"),
        ("--device-memory", "-1GiB"),
        ("--unknown",),
        ("one-word-too-many",),
    ],
)
def test_wrong_options_are_told_in_one_line(multiplier, prove, refused, folder, options):
    refused(prove(multiplier.key, multiplier.witness, *options), folder)


def test_an_unknown_default_allocator(multiplier, folder):
    words = ["prove", multiplier.key, multiplier.witness, folder / "p", folder / "q"]
    done = subprocess.run(
        [sys.executable, "-m", "prover", *map(str, words)],
        env=os.environ | {"BIGMEM_ALLOCATOR": "no-such-allocator"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no-such-allocator" in line
    assert list(folder.iterdir()) == []


def test_an_allocator_that_fails_is_told_in_one_line(
    multiplier, prove, refused, folder, monkeypatch
):
    def fail():
        raise RuntimeError("no such device")

    monkeypatch.setitem(bigmem.registry._BUILT_IN, "failing", fail)
    line = refused(prove(multiplier.key, multiplier.witness, "--allocator", "failing"), folder)
    assert line == "prover: --allocator failing: no such device"


def test_curves_know_their_roots_of_unity():
    for curve in CURVES.values():
        for order in (1, 2, 8, 2 * curve.largest_domain):
            root = curve.root_of_unity(order)
            assert pow(root, order, curve.r) == 1
            assert order == 1 or pow(root, order // 2, curve.r) == curve.r - 1
        for order in (0, 3, 4 * curve.largest_domain):
            with pytest.raises(ValueError):
                curve.root_of_unity(order)
