"""From a witness to a checked proof, over HTTP."""

import base64
import hashlib
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import FIXTURES, PATIENCE, form

KEY = "bn128-multiplier"
NAMES = [f"{curve}-{circuit}" for curve in ("bn128", "bls12381") for circuit in
         ("multiplier", "zeropub", "manypub")]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["form", "json"])
def test_every_witness_becomes_a_right_proof(server, witnesses, right, name, how):
    submit = server.submit if how == "form" else server.submit_json
    reply = submit(name, witnesses[name])
    assert reply.status == 202
    job = reply.json["id"]
    assert reply.headers["location"] == f"/jobs/{job}"
    assert right(name, server.answer(job))


def test_the_files_are_those_of_snarkjs(server, witnesses, tmp_path):
    from prover.cli import main

    job = server.accepted("bn128-multiplier", witnesses["bn128-multiplier"])
    server.answer(job)
    fixture = FIXTURES / "bn128" / "multiplier"
    for name in ("proof.json", "public.json"):
        reply = server.get(f"/jobs/{job}/{name}")
        assert reply.status == 200
        (tmp_path / name).write_bytes(reply.body)
    assert (tmp_path / "public.json").read_bytes() == (fixture / "public.json").read_bytes()
    files = [fixture / "verification_key.json", tmp_path / "public.json", tmp_path / "proof.json"]
    assert main(["verify", *map(str, files)]) == 0


def test_a_witness_that_does_not_satisfy_the_circuit_fails_with_the_reason(server, witnesses):
    witness = bytearray(witnesses["bn128-multiplier"])
    witness[-1 - 31] ^= 1
    answer = server.answer(server.accepted("bn128-multiplier", bytes(witness)))
    assert answer["state"] == "failed"
    assert answer["error"] == "UnsatisfiedCircuit"
    assert answer["reason"].startswith(
        "witness: does not satisfy the circuit of bn128-multiplier.zkey"
    )
    assert server.get(f"/jobs/{answer['id']}/proof.json").status == 409


def test_an_answer_is_forgotten_when_deleted(server, witnesses):
    job = server.accepted("bn128-multiplier", witnesses["bn128-multiplier"])
    server.answer(job)
    reply = server.ask("DELETE", f"/jobs/{job}")
    assert (reply.status, reply.json["state"]) == (200, "forgotten")
    assert server.get(f"/jobs/{job}").status == 404
    assert server.ask("DELETE", f"/jobs/{job}").status == 404


def test_an_answer_is_forgotten_when_it_has_been_kept_long_enough(start, keys, witnesses):
    server = start(keys, "--keep", "1")
    job = server.accepted("bn128-multiplier", witnesses["bn128-multiplier"])
    server.answer(job)
    deadline = time.monotonic() + 60
    while server.get(f"/jobs/{job}").status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert server.get("/status").json["answers"]["kept"] == 0


def test_keys_are_listed_with_what_their_witnesses_hold(server, witnesses):
    listed = server.get("/keys").json
    assert listed["bad"] == {}
    assert {name: key["witness_bytes"] for name, key in listed["keys"].items()} == {
        name: len(witness) for name, witness in witnesses.items()
    }
    assert listed["keys"]["bn128-multiplier"]["curve"] == "bn128"
    assert listed["keys"]["bn128-multiplier"]["constraints"] == 1


def test_the_status_tells_memory_by_state_and_layer_times(server, witnesses):
    server.answer(server.accepted("bn128-manypub", witnesses["bn128-manypub"]))
    status = server.until(lambda status: status["memory"])
    assert {"live", "pending", "warm", "clean"} <= set(status["memory"])
    assert status["memory"]["warm"] > 0
    latest = status["proofs"][0]
    assert latest["key"] == "bn128-manypub"
    [proof] = latest["layers"]
    assert proof["name"] == "proof"
    assert proof["wall_s"] == pytest.approx(
        proof["gap_s"] + sum(layer["wall_s"] for layer in proof["layers"]), rel=0.01
    )


def test_metrics_count_what_happens(server, witnesses):
    def metrics():
        text = server.get("/metrics").body.decode()
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    before = metrics()
    server.answer(server.accepted("bn128-zeropub", witnesses["bn128-zeropub"]))
    server.submit("no-such-key", b"")
    deadline = time.monotonic() + PATIENCE
    # The server does not wait long for what a busy worker says of its memory.
    while ("prover_memory_bytes", "warm") not in (after := metrics()):
        assert time.monotonic() < deadline, after

    def grown(*name):
        return after[name] - before.get(name, 0)

    assert grown("prover_jobs_total", "done") == 1
    assert grown("prover_proof_seconds_count", "bn128-zeropub") == 1
    assert grown("prover_refused_requests_total", "404") == 1
    assert after["prover_ready",] == 1
    assert after["prover_queue_limit",] == 4
    assert after["prover_memory_bytes", "warm"] > 0
    assert after["prover_resident_bytes", "worker"] > 1 << 20


def test_a_budget_too_small_fails_the_job_and_nothing_else(start, keys, witnesses):
    server = start(keys, "--budget", "4KiB")
    answer = server.answer(server.accepted("bn128-manypub", witnesses["bn128-manypub"]))
    assert answer["state"] == "failed"
    assert answer["error"] == "OutOfMemory"
    assert server.get("/readyz").status == 200
    assert server.get("/status").json["worker_starts"] == 1


def traces(text, witness, signals):
    """Which of a witness's signals a text shows, in what form."""
    shown = []
    for signal in signals:
        number = signal.to_bytes(32, "little")
        at = witness.index(number)
        forms = {
            "decimal": str(signal),
            "hexadecimal": f"{signal:x}",
            "bytes in hexadecimal": number.hex(),
            "repr of bytes": repr(number)[2:-1],
            # The whole triples inside: what is around them changes the characters at the ends.
            "base64 of the file": base64.b64encode(witness[at + -at % 3 :][:30]).decode(),
            **{
                f"base64 from byte {start}": base64.b64encode(number[start:][:30]).decode()
                for start in range(3)
            },
        }
        shown += [name for name, form in forms.items() if form.lower() in text.lower()]
    return shown


def test_nothing_of_a_witness_is_logged_or_in_a_named_file(start, keys):
    """Neither of one that is proved, nor of one that is false, malformed or cut off."""
    server = start(keys)
    signals = [int.from_bytes(hashlib.sha256(name).digest()) >> 6 for name in (b"a", b"b")]
    witness = multiplied(*signals)
    # What is searched for would be found.
    assert len(traces(repr([signals, witness]), witness, signals)) == 4
    assert len(traces(witness.hex(), witness, signals)) == 2
    assert len(traces(f"{signals[0]:x}", witness, signals)) == 1
    assert "base64 of the file" in traces(base64.b64encode(witness).decode(), witness, signals)
    false = witness[:76] + witness[76:108] + bytes([1]) + bytes(31) + witness[140:]
    with server.held():
        jobs = [server.accepted(KEY, witness), server.submit_json(KEY, witness).json["id"]]
        jobs += [server.accepted(KEY, false)]
        files = {opened.path for opened in server.worker().parent().open_files()}
        assert files <= {str(server.log), "/dev/null"}
        for bad in (witness[:-1], witness + b"x", witness[::-1], witness[:-1] + b"\xff"):
            assert server.submit(KEY, bad).status in (413, 422)
            assert server.submit_json(KEY, bad).status in (413, 422)
        body, kind = form(KEY, witness)
        assert server.ask("POST", "/jobs", body[:-20], Content_Type=kind).status == 413
        assert server.ask("POST", "/jobs", witness, Content_Type="application/json").status == 400
    assert [server.answer(job)["state"] for job in jobs] == ["done", "done", "failed"]
    log = server.log.read_text()
    assert f"job {jobs[2][:8]} ({KEY}): failed" in log
    assert traces(log, witness, signals) == []


def multiplied(*factors):
    """A witness of the circuit whose public signal is the product of its two secrets."""
    fixture = (FIXTURES / "bn128" / "multiplier" / "witness.wtns").read_bytes()
    order = int.from_bytes(fixture[28:60], "little")
    product = factors[0] * factors[1] % order
    return fixture[:108] + b"".join(value.to_bytes(32, "little") for value in (product, *factors))


def test_a_key_is_named_by_the_upload_and_nothing_else(server, witnesses):
    body, kind = form("bn128-multiplier", witnesses["bn128-multiplier"])
    reply = server.ask("POST", "/jobs?key=bls12381-multiplier", body, Content_Type=kind)
    assert reply.json["key"] == "bn128-multiplier"
    server.answer(reply.json["id"])
