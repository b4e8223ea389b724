"""`prover batch --scheduler`: the workers of a real cluster prove, and one of them is killed."""

import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client, KilledWorker
from distributed.scheduler import WorkerState
from waiting import wait_for

from prover.backends import get_backend
from prover.cli import main
from prover.cluster import batch as cluster_batch
from prover.cluster import identity, remote
from prover.cluster.batch import ClusterBatch, ClusterFailure
from prover.cluster.identity import KeyIdentity
from prover.errors import MismatchedFiles, UsageError
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.pipeline import single

from .conftest import cluster

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
MULTIPLIER = FIXTURES / "bn128" / "multiplier"
MANYPUB = FIXTURES / "bls12381" / "manypub"
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def pair() -> Iterator[Client]:
    """Two workers, in processes with nannies."""
    with cluster(n_workers=2) as client:
        yield client


def address(client: Client) -> str:
    return str(client.scheduler.address)


def run(capfd: Any, *words: object) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main([str(word) for word in words])
    return code, *capfd.readouterr()


def unsatisfying(folder: Path, sections: Any) -> Path:
    """A well-formed witness that does not satisfy the multiplier."""
    witness = sections.read(MULTIPLIER / "witness.wtns")
    witness[2][-32] ^= 1
    path = folder / "bad.wtns"
    path.write_bytes(witness.encode())
    return path


def batch_of(folder: Path, scheduler: str = NOWHERE, **options: Any) -> ClusterBatch:
    return ClusterBatch(
        ProvingKey.open(MULTIPLIER / "circuit.zkey"),
        [str(MULTIPLIER / "witness.wtns")],
        scheduler=scheduler,
        settings=options.pop("settings", remote.Settings()),
        folder=folder,
        **{"repeat": 1, **options},
    )


# On a cluster


@pytest.mark.parametrize("circuit", [MULTIPLIER, MANYPUB], ids=["multiplier", "manypub"])
def test_proofs_come_back_valid(pair: Client, circuit: Path, tmp_path: Path, capfd: Any) -> None:
    out, figures_path = tmp_path / "out", tmp_path / "figures.json"
    code, printed, err = run(
        capfd, "batch", circuit / "circuit.zkey", circuit / "witness.wtns", "--repeat", 5,
        "--scheduler", address(pair), "--backend", "cpu", "--threads", 1, "--allocator", "deferred",
        "-o", out, "--json", figures_path,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert len(printed.splitlines()) == 6
    proofs = sorted(out.glob("*.proof.json"))
    assert [proof.name for proof in proofs] == [f"{n}-witness.proof.json" for n in range(1, 6)]
    assert len({proof.read_bytes() for proof in proofs}) == 5
    for proof in proofs:
        public = proof.with_name(proof.name.replace(".proof.", ".public."))
        assert (
            main(["verify", str(circuit / "verification_key.json"), str(public), str(proof)]) == 0
        )
    figures = json.loads(figures_path.read_text())
    assert figures["proofs"] == 5
    assert {one["worker"] for one in figures["each"]} <= set(pair.nthreads())
    assert [one["proof"] for one in figures["each"]] == [str(proof) for proof in proofs]
    assert figures["wall_s"] >= max(one["wall_s"] for one in figures["each"]) > 0
    limits = pair.run(lambda: resource.getrlimit(resource.RLIMIT_CORE)[0])
    assert all(limits[one["worker"]] in (0, 1) for one in figures["each"])


def test_a_bad_witness_is_told_as_without_a_cluster(
    pair: Client, tmp_path: Path, sections: Any, capfd: Any
) -> None:
    bad = unsatisfying(tmp_path, sections)
    words = ("batch", MULTIPLIER / "circuit.zkey", MULTIPLIER / "witness.wtns", bad, "-o")
    here = run(capfd, *words, tmp_path / "here")
    there = run(capfd, *words, tmp_path / "there", "--scheduler", address(pair))
    assert there[0] == here[0] == 2
    assert there[2] == here[2]
    assert str(bad) in there[2]
    names = {path.name for path in (tmp_path / "there").iterdir()}
    assert names <= {"1-witness.proof.json", "1-witness.public.json"}


def test_a_key_elsewhere_is_found_by_its_content(
    pair: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "a.zkey").write_bytes((MANYPUB / "circuit.zkey").read_bytes())
    (keys / "b.zkey").write_bytes((MULTIPLIER / "circuit.zkey").read_bytes())
    elsewhere = KeyIdentity("k.zkey", "/nowhere/k.zkey", *content(MULTIPLIER / "circuit.zkey"))
    monkeypatch.setattr(KeyIdentity, "of", lambda name: elsewhere)

    with_folder = batch_of(tmp_path, address(pair), settings=remote.Settings(key_folder=str(keys)))
    assert with_folder.run(lambda made: None)["proofs"] == 1
    with pytest.raises(ClusterFailure) as refusal:
        batch_of(tmp_path, address(pair)).run(lambda made: None)
    worker, reason = str(refusal.value).split(": ", 1)
    assert worker.removeprefix("worker ") in pair.nthreads()
    assert reason == (
        f"no key with the SHA-256 {elsewhere.sha256} at /nowhere/k.zkey; copy the key there"
    )


def test_what_a_worker_cannot_do_is_told_with_its_address(pair: Client, tmp_path: Path) -> None:
    settings = remote.Settings(allocator="no-such")
    with pytest.raises(ClusterFailure, match=r"^worker tcp://.*: there is no allocator called"):
        batch_of(tmp_path, address(pair), settings=settings).run(lambda made: None)


def test_the_circuits_of_a_killed_worker_are_made_by_others(pair: Client, tmp_path: Path) -> None:
    pids = pair.run(os.getpid)
    made: list[str] = []
    lost: dict[str, set[object]] = {}

    def advance(proof: Any) -> None:
        made.append(proof.proof)
        if len(made) == 1:
            # Orders, and proofs that nobody has fetched: this callback keeps the client from it.
            processing, stored = pair.processing(), pair.has_what()
            held = {one: {*processing[one], *stored[one]} for one in pids}
            victim = max(held, key=lambda one: len(held[one]))
            lost[victim] = held[victim]
            os.kill(pids[victim], signal.SIGKILL)

    figures = batch_of(tmp_path, address(pair), repeat=12).run(advance)
    ((victim, orders),) = lost.items()
    assert orders
    assert figures["proofs"] == len(set(made)) == 12
    assert len(list(tmp_path.glob("*.json"))) == 24
    wait_for(lambda: len(pair.nthreads()) == 2, 60)
    (dead,) = set(pids.values()) - set(pair.run(os.getpid).values())
    assert dead == pids[victim]


def test_a_lost_scheduler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_batch, "CONNECT_SECONDS", 1)
    with cluster(n_workers=1, processes=False, protocol="tcp://") as client:

        def advance(proof: Any) -> None:
            client.cluster.close()

        with pytest.raises(ClusterFailure, match="lost the scheduler"):
            batch_of(tmp_path, address(client), repeat=50).run(advance)
    assert len(list(tmp_path.glob("*.proof.json"))) >= 1


def test_a_batch_waits_for_workers_that_are_yet_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_batch, "_LOOK_SECONDS", 0.1)
    with cluster(n_workers=0, processes=False, protocol="tcp://") as client:
        lines: list[str] = []

        def notify(line: str) -> None:
            lines.append(line)
            client.cluster.scale(1)

        figures = batch_of(tmp_path, address(client), notify=notify).run(lambda made: None)
    assert figures["proofs"] == 1
    (line,) = lines
    assert line.endswith("there is no worker; waiting for one")


def test_errors_of_whoever_listens_are_not_the_schedulers(pair: Client, tmp_path: Path) -> None:
    def advance(proof: Any) -> None:
        raise BrokenPipeError(f"nobody reads {proof.proof}")

    with pytest.raises(BrokenPipeError):
        batch_of(tmp_path, address(pair), repeat=3).run(advance)


# Without one


def content(key: Path) -> tuple[int, str]:
    one = KeyIdentity.of(str(key))
    return one.nbytes, one.sha256


def test_a_key_is_what_it_holds(tmp_path: Path) -> None:
    key = tmp_path / "key.zkey"
    key.write_bytes(b"one")
    meant = KeyIdentity.of(str(key))
    assert meant.find() == key
    key.write_bytes(b"two")  # the same size
    with pytest.raises(MismatchedFiles, match=rf"other keys are {key}; copy the key there"):
        meant.find()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "b.zkey").write_bytes(b"one")
    (folder / "c.txt").write_bytes(b"one")
    assert meant.find(str(folder)) == folder / "b.zkey"
    key.unlink()
    (folder / "b.zkey").unlink()
    with pytest.raises(MismatchedFiles, match=rf"at {key} or {folder}/\*.zkey; copy"):
        meant.find(str(folder))


def test_a_key_is_read_once_unless_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key.zkey"
    key.write_bytes(b"one")
    meant = KeyIdentity.of(str(key))

    def refuse(*arguments: object) -> None:
        raise AssertionError("read again")

    with monkeypatch.context() as patched:
        patched.setattr(identity.hashlib, "file_digest", refuse)
        assert meant.find() == key
    key.write_bytes(b"two")
    os.utime(key, ns=(1, 1))
    with pytest.raises(MismatchedFiles):
        meant.find()


def test_the_witness_is_in_no_log() -> None:
    secret = b"the secret signal"
    order = remote.Order(KeyIdentity("k", "/k", 1, "00"), "w.wtns", secret, remote.Settings())
    assert "secret" not in repr(order)
    assert "w.wtns" in repr(order)


def test_a_witness_from_bytes_is_that_of_the_file_and_survives_dropping() -> None:
    path = MULTIPLIER / "witness.wtns"
    order = remote.Order(KeyIdentity("k", "/k", 1, "00"), "w", path.read_bytes(), remote.Settings())
    witness = remote._witness(order)
    witness.drop()
    assert witness.path == "w"
    assert (witness.values == Witness.open(path).values).all()


def test_the_threads_of_a_worker_divide_cores_and_gpu_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}
    worker = SimpleNamespace(state=SimpleNamespace(nthreads=3))
    monkeypatch.setattr(remote, "get_worker", lambda: worker)
    monkeypatch.setattr(remote, "_of_thread", threading.local())
    monkeypatch.setattr(remote, "get_backend", lambda name, **options: given.update(options))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)))
    remote._backend(ProvingKey.open(MULTIPLIER / "circuit.zkey"), remote.Settings())
    assert (given["threads"], given["sharers"]) == (4, 3)
    given["notify"]("compiling CUDA kernels")
    assert capsys.readouterr() == ("", "compiling CUDA kernels\n")


def answered() -> remote.Answer:
    key = ProvingKey.open(MULTIPLIER / "circuit.zkey")
    witness = Witness.open(MULTIPLIER / "witness.wtns")
    proof = single.prove(key, witness, backend=get_backend("cpu", threads=1)).proof
    return remote.Answer("tcp://w:1", 1.0, *(p.tobytes() for p in (proof.a, proof.b, proof.c)))


def test_what_a_worker_returns_is_checked_before_it_is_written(tmp_path: Path) -> None:
    batch = batch_of(tmp_path)
    good = answered()
    public = [33]
    sent = cluster_batch._Sent(1, "w.wtns", public)
    batch._finish(sent, good)
    written = list(tmp_path.iterdir())
    assert len(written) == 2
    for path in written:
        path.unlink()

    swapped = remote.Answer("tcp://w:1", 1.0, good.c, good.b, good.a)
    short = remote.Answer("tcp://w:1", 1.0, good.a[:-1], good.b, good.c)
    noise = remote.Answer("tcp://w:1", 1.0, bytes(range(64)), good.b, good.c)
    nothing = remote.Answer("tcp://w:1", 1.0, bytes(64), bytes(128), bytes(64))
    for bad in (swapped, short, noise, nothing):
        with pytest.raises(ClusterFailure, match=r"tcp://w:1: its proof of w.wtns is not valid"):
            batch._finish(sent, bad)
    with pytest.raises(ClusterFailure, match="not valid"):
        batch._finish(cluster_batch._Sent(1, "w.wtns", [34]), good)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            KilledWorker("task", WorkerState.__new__(WorkerState), 3),
            "w.wtns: no proof, for 4 workers were lost while they made it",
        ),
        (
            ModuleNotFoundError("No module named 'prover'"),
            r"w.wtns: no proof, for a worker failed \(No module named 'prover'\)",
        ),
    ],
)
def test_what_dask_raises_is_told_in_a_line(error: Exception, message: str, tmp_path: Path) -> None:
    class Failed:
        def result(self) -> None:
            raise error

    future: Any = Failed()
    with pytest.raises(ClusterFailure, match=f"^{message}[^\n]*$"):
        batch_of(tmp_path)._answer(future, cluster_batch._Sent(1, "w.wtns", []))


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ("nowhere", "missing port number"),
        ("foo://127.0.0.1:1", "unknown address scheme 'foo'"),
        ("tls://127.0.0.1:1", "no certificate for TLS"),
        (NOWHERE, "cannot be reached"),
    ],
)
def test_addresses_of_no_scheduler_are_refused(
    scheduler: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_batch, "CONNECT_SECONDS", 0.2)
    with pytest.raises(UsageError, match=rf"^--scheduler {scheduler}: .*{message}[^\n]*$"):
        batch_of(tmp_path, scheduler).run(lambda made: None)


@pytest.mark.parametrize(
    ("addresses", "warned"),
    [
        ({"tcp://127.0.0.1:1": 1, "tcp://localhost:2": 1, "tls://10.0.0.1:2": 1}, None),
        ({"tls://10.0.0.1:2": 1, "tcp://10.0.0.2:3": 1}, "tcp://10.0.0.2:3"),
    ],
)
def test_unencrypted_ways_are_warned_of(
    addresses: dict[str, int], warned: str | None, tmp_path: Path
) -> None:
    lines: list[str] = []

    class Connected:
        def nthreads(self) -> dict[str, int]:
            return addresses

    client: Any = Connected()
    batch_of(tmp_path, "tls://10.0.0.1:1", notify=lines.append)._warn_of_listeners(client)
    assert [f"unencrypted to {warned};" in line for line in lines] == ([True] if warned else [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--key-folder", "keys"), "it goes with --scheduler"),
        *(
            (("--scheduler", NOWHERE, *words), f"{words[0]} is about proving on this machine")
            for words in (
                ("--devices", "0"),
                ("--assignments-allocator", "recycle"),
                ("--mode", "seed"),
                ("--ahead", "1GiB"),
                ("--timings",),
            )
        ),
    ],
)
def test_options_that_do_not_go_together(
    words: tuple[str, ...], message: str, tmp_path: Path, capfd: Any
) -> None:
    key, witness = MULTIPLIER / "circuit.zkey", MULTIPLIER / "witness.wtns"
    code, _, err = run(capfd, "batch", key, witness, "-o", tmp_path / "out", *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()


def test_without_distributed_the_command_says_what_to_install(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("prover.cluster.batch", "prover.cluster.remote"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "distributed", None)
    key, witness = MULTIPLIER / "circuit.zkey", MULTIPLIER / "witness.wtns"
    code, _, err = run(capfd, "batch", key, witness, "-o", tmp_path / "out", "--scheduler", NOWHERE)
    assert code == 2
    assert err.count("\n") == 1
    assert "pip install 'bigmem[dask]'" in err


def test_a_proof_is_of_the_right_shape_for_its_curve(tmp_path: Path) -> None:
    proof = batch_of(tmp_path)._proof(answered())
    assert proof is not None
    assert proof.a.shape == (1, 64)
    assert proof.b.shape == (1, 128)
    assert proof.a.dtype == np.uint8
