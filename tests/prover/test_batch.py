"""prover batch: many checked proofs and honest figures."""

import json
import resource

import pytest


def tree(layer):
    """The names of a layer and of those inside; of those without any, the name alone."""
    inside = [tree(one) for one in layer["layers"]]
    return (layer["name"], inside) if inside else layer["name"]


def test_batch(circuit, cli, folder, tmp_path):
    figures_path = tmp_path / "figures.json"
    outcome = cli(
        "batch", circuit.key, circuit.witness, circuit.witness, "--allocator", "recycle",
        "--repeat", 3, "-o", folder, "--json", figures_path,
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    assert len(outcome.out.splitlines()) == 7
    key = circuit.folder / "verification_key.json"
    proofs = sorted(folder.glob("*.proof.json"))
    assert len(proofs) == 6
    assert len(list(folder.iterdir())) == 12
    for proof in proofs:
        public = proof.with_name(proof.name.replace(".proof.", ".public."))
        assert cli("verify", key, public, proof).code == 0
    assert len({proof.read_bytes() for proof in proofs}) == 6

    figures = json.loads(figures_path.read_text())
    assert figures["allocator"] == "recycle"
    assert figures["proofs"] == len(figures["each"]) == 6
    assert figures["curve"] == circuit.curve
    assert figures["domain"] >= figures["constraints"] > 0
    assert figures["wall_s"] >= sum(one["wall_s"] for one in figures["each"]) > 0
    assert sum(figures["stages"].values()) <= figures["wall_s"]
    assert set(figures["stages"]) == {
        "allocate", "sparse", "ntt", "msm H", "msm A", "msm B1", "msm B2", "msm C", "assembly",
        "check", "write", "before release", "release",
    }  # fmt: skip
    (batch,) = figures["layers"]
    assert batch["name"] == "batch"
    ahead, worker = sorted(batch["layers"], key=lambda one: one["name"])
    assert tree(ahead) == ("ahead", [("wait", ["give back"]), "open", ("synthesis", ["witness"])])
    wait, circuit, advance = worker["layers"]
    assert [one["name"] for one in (wait, circuit, advance)] == ["wait", "circuit", "advance"]
    proof, *end = circuit["layers"]
    assert [one["name"] for one in end] == ["before release", "release"]
    prove, epilogue = proof["layers"]
    assert tree(epilogue) == ("epilogue", ["check", ("finish", ["write"])])
    sums, assembly = prove["layers"]
    assert tree(assembly) == ("epilogue", ["assembly"])
    assert [one["name"] for one in sums["layers"]] == [
        "NTT/MSM-H", "allocate", "msm A", "msm B1", "B in G2", "msm C",
    ]  # fmt: skip
    phases = ["split vectors", "prep MSM", "batch addition", "tail MSMs", "drop"]
    assert tree(sums["layers"][0]) == (
        "NTT/MSM-H", ["allocate", "sparse", "ntt", ("msm H", phases)]
    )  # fmt: skip
    assert tree(sums["layers"][4]) == ("B in G2", ["allocate", ("msm B2", phases)])
    assert all(one["calls"] == 6 for one in (circuit, advance, proof, prove, sums, epilogue))
    assert wait["calls"] == 7
    assert circuit["wall_s"] == pytest.approx(sum(one["wall_s"] for one in figures["each"]))
    for name, seconds in figures["stages"].items():
        assert seconds == pytest.approx(sum(one["stages"][name] for one in figures["each"]))
    assert figures["peak_rss_bytes"] > 1 << 20
    stats = figures["allocator_stats"]
    assert stats["allocations"] == 6 * 9 + 2  # and the key's masks
    assert stats["releases"] == 6 * 9
    assert stats["warm_hits"] > 0  # the second proof finds the first one's memory


def test_batch_refuses_before_it_proves(multiplier, cli, folder, refused):
    other = multiplier.folder.parent / "manypub" / "witness.wtns"
    new = folder / "new"
    line = refused(cli("batch", multiplier.key, multiplier.witness, other, "-o", new), folder)
    assert str(other) in line


def test_batch_refuses_its_figures_place_before_it_proves(multiplier, cli, folder, refused):
    words = ("batch", multiplier.key, multiplier.witness, "-o", folder, "--json")
    for place, message in (
        (folder / "missing" / "figures.json", "folder does not exist"),
        (multiplier.witness, "is an input"),
        (multiplier.key, "is an input"),
        (folder / "1-witness.proof.json", "is where a proof goes"),
        (folder / ".." / folder.name / "1-witness.public.json", "is where a proof goes"),
    ):
        before = multiplier.witness.read_bytes(), multiplier.key.read_bytes()
        assert message in refused(cli(*words, place), folder)
        assert (multiplier.witness.read_bytes(), multiplier.key.read_bytes()) == before


def test_batch_replaces_none_of_its_inputs(multiplier, cli, folder, refused):
    key = folder / "1-witness.proof.json"
    key.write_bytes(multiplier.key.read_bytes())
    line = refused(cli("batch", key, multiplier.witness, "-o", folder))
    assert "is an input" in line
    assert key.read_bytes() == multiplier.key.read_bytes()
    assert list(folder.iterdir()) == [key]


def test_more_witnesses_than_the_process_may_open(multiplier, cli, folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        outcome = cli("batch", multiplier.key, *[multiplier.witness] * 100, "-o", folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (outcome.code, outcome.err) == (0, "")
    assert len(list(folder.iterdir())) == 200


def test_batch_stops_at_a_bad_witness(multiplier, cli, folder, tmp_path, sections):
    raw = sections.read(multiplier.witness)
    raw[2][96] ^= 1
    bad = tmp_path / "bad.wtns"
    bad.write_bytes(raw.encode())
    outcome = cli("batch", multiplier.key, multiplier.witness, bad, "-o", folder)
    assert outcome.code == 2
    (line,) = outcome.err.splitlines()
    assert str(bad) in line
    assert sorted(path.name for path in folder.iterdir()) == [
        "1-witness.proof.json",
        "1-witness.public.json",
    ]


@pytest.mark.parametrize("repeat", ["0", "-1", "x", "9" * 12, "9" * 5000])
def test_a_number_of_proofs_that_makes_no_sense(multiplier, cli, folder, refused, repeat):
    words = ("batch", multiplier.key, multiplier.witness, "-o", folder, "--repeat", repeat)
    refused(cli(*words), folder)


def test_an_output_folder_that_is_a_file(multiplier, cli, tmp_path, refused):
    file = tmp_path / "file"
    file.touch()
    line = refused(cli("batch", multiplier.key, multiplier.witness, "-o", file))
    assert "cannot be made a folder" in line


def test_a_batch_whose_vectors_are_made_ahead(circuit, cli, folder, tmp_path):
    figures_path = tmp_path / "figures.json"
    outcome = cli(
        "batch", circuit.key, circuit.witness, "--repeat", 3, "-o", folder, "--mode", "seed",
        "--allocator", "mapped", "--assignments-allocator", "recycle", "--ahead", "64KiB",
        "--json", figures_path,
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    key = circuit.folder / "verification_key.json"
    for proof in folder.glob("*.proof.json"):
        public = proof.with_name(proof.name.replace(".proof.", ".public."))
        assert cli("verify", key, public, proof).code == 0
    figures = json.loads(figures_path.read_text())
    assert figures["mode"] == "seed"
    assert (figures["allocator"], figures["assignments_allocator"]) == ("mapped", "recycle")
    owners = figures["owners"]
    assert owners["vectors"]["allocations"] == 3 * 6  # h, and the workspaces of five sums
    assert owners["assignments"]["allocations"] == 3 * 4 + 2
    assert owners["assignments"]["peak_live"] <= 64 << 10
    assert figures["allocator_stats"]["allocations"] == 3 * 10 + 2
    assert "sparse" not in figures["stages"]  # it is not in the proofs
    (batch,) = figures["layers"]
    (worker,) = (one for one in batch["layers"] if one["name"] == "worker")
    sums = worker["layers"][1]["layers"][0]["layers"][0]["layers"][0]
    assert [one["name"] for one in sums["layers"][0]["layers"]] == [
        "allocate", "ntt", "release", "msm H",
    ]  # fmt: skip


def test_room_ahead_for_less_than_one_circuit(multiplier, cli, folder, refused):
    words = ("batch", multiplier.key, multiplier.witness, "-o", folder, "--ahead")
    assert "hold no circuit" in refused(cli(*words, "4KiB"), folder)
    assert "size" in refused(cli(*words, "much"), folder)


def test_no_such_allocator_of_assignments(multiplier, cli, folder, refused):
    words = ("batch", multiplier.key, multiplier.witness, "-o", folder)
    line = refused(cli(*words, "--assignments-allocator", "nobody's"), folder)
    assert "--assignments-allocator nobody's" in line


@pytest.mark.parametrize("mode", ["normal", "seed"])
def test_an_output_that_cannot_be_written_later(multiplier, cli, folder, mode):
    (folder / "3-witness.proof.json").mkdir()
    words = ("batch", multiplier.key, multiplier.witness, "--repeat", 5, "-o", folder)
    outcome = cli(*words, "--mode", mode)
    assert outcome.code == 2
    (line,) = outcome.err.splitlines()
    assert "3-witness.proof.json: is a directory" in line
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [
        "1-witness.proof.json",
        "1-witness.public.json",
        "2-witness.proof.json",
        "2-witness.public.json",
    ]
