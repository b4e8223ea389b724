"""Batches that several backends share."""

import sys
import threading
from types import SimpleNamespace

import pytest

import bigmem
from prover import backends
from prover.backends.cpu.backend import CpuBackend
from prover.backends.cuda.device import Device
from prover.errors import UnavailableBackend, UnsatisfiedCircuit
from prover.formats.zkey import ProvingKey
from prover.pipeline.batch import Batch


class Meeting(CpuBackend):
    """Its first sums wait until every other backend of the meeting has begun, too."""

    def __init__(self, barrier):
        super().__init__(1)
        self.barrier = barrier
        self.proofs = 0

    def sums_of(self, key, operands, allocator=None):
        self.proofs += 1
        if self.proofs == 1:
            self.barrier.wait(timeout=60)
        return super().sums_of(key, operands, allocator)


@pytest.fixture
def workers():
    barrier = threading.Barrier(2)
    return [Meeting(barrier), Meeting(barrier)]


@pytest.fixture
def batch_of(multiplier, folder, workers):
    def make(*witnesses, repeat=1):
        return Batch(
            ProvingKey.open(multiplier.key),
            [str(path) for path in witnesses],
            backends=workers,
            vectors=bigmem.get_allocator(),
            assignments=bigmem.get_allocator(),
            repeat=repeat,
            folder=folder,
        )

    return make


def test_workers_prove_at_the_same_time(multiplier, batch_of, workers, cli, folder):
    told = []
    figures = batch_of(multiplier.witness, repeat=7).run(told.append)
    assert figures["workers"] == 2
    assert sum(worker.proofs for worker in workers) == len(told) == figures["proofs"] == 7
    assert min(worker.proofs for worker in workers) >= 1
    assert [one["proof"] for one in figures["each"]] == sorted(made.proof for made in told)
    (batch,) = figures["layers"]
    (worker,) = (one for one in batch["layers"] if one["name"] == "worker")
    (circuit,) = (one for one in worker["layers"] if one["name"] == "circuit")
    assert (worker["calls"], circuit["calls"]) == (2, 7)
    assert circuit["wall_s"] == pytest.approx(sum(one["wall_s"] for one in figures["each"]))
    key = multiplier.folder / "verification_key.json"
    for one in figures["each"]:
        assert cli("verify", key, one["public"], one["proof"]).code == 0


def test_all_workers_stop_at_a_bad_witness(
    multiplier, batch_of, workers, folder, tmp_path, sections
):
    raw = sections.read(multiplier.witness)
    raw[2][96] ^= 1
    bad = tmp_path / "bad.wtns"
    bad.write_bytes(raw.encode())
    told = []
    with pytest.raises(UnsatisfiedCircuit, match=r"bad\.wtns"):
        batch_of(bad, *[multiplier.witness] * 200).run(told.append)
    assert len(told) < 200
    assert {path.suffixes[0] for path in folder.iterdir()} == {".proof", ".public"}
    assert len(list(folder.iterdir())) == 2 * len(told)


def test_an_interruption_stops_the_others(multiplier, batch_of, workers):
    def interrupt(made):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        batch_of(*[multiplier.witness] * 200).run(interrupt)
    assert sum(worker.proofs for worker in workers) < 200


def test_devices_become_workers(multiplier, cli, folder, monkeypatch):
    asked = []

    def get_cuda_backends(numbers, *, threads, device_memory, notify):
        asked.append((numbers, threads, device_memory))
        return [CpuBackend() for _ in numbers]

    monkeypatch.setattr(backends, "get_cuda_backends", get_cuda_backends)
    words = ["batch", multiplier.key, *[multiplier.witness] * 5, "-o", folder]
    outcome = cli(*words, "--devices", "0,0,3", "--device-memory", "1GiB", "--threads", "2")
    assert (outcome.code, outcome.err) == (0, "")
    assert asked == [([0, 0, 3], 2, 1 << 30)]
    assert len(outcome.out.splitlines()) == 6
    assert len(list(folder.iterdir())) == 10


@pytest.mark.parametrize("devices", ["", ",", "0,", "-1", "0;1", "x", "0,1000"])
def test_devices_that_are_no_numbers(multiplier, cli, folder, refused, devices):
    words = ("batch", multiplier.key, multiplier.witness, "-o", folder)
    line = refused(cli(*words, f"--devices={devices}"), folder)
    assert "number from 0 to 999" in line


def test_devices_are_not_the_cpus(multiplier, cli, folder, refused):
    words = ("batch", multiplier.key, multiplier.witness, "-o", folder)
    assert "--backend cpu" in refused(cli(*words, "--devices", 0, "--backend", "cpu"), folder)
    for elsewhere in ((), ("--scheduler", "tcp://127.0.0.1:9")):
        limited = cli(*words, "--device-memory", "1GiB", "--backend", "cpu", *elsewhere)
        assert "--device-memory is of a GPU" in refused(limited, folder)


def test_devices_without_cupy(multiplier, cli, folder, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    words = ("batch", multiplier.key, multiplier.witness, "-o", folder)
    assert "CuPy" in refused(cli(*words, "--devices", "0,1"), folder)


@pytest.mark.parametrize(("count", "present"), [(1, "GPU 0 alone"), (4, "GPUs 0 to 3")])
def test_a_device_that_is_not_there(monkeypatch, count, present):
    runtime = SimpleNamespace(getDeviceCount=lambda: count)
    fake = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    with pytest.raises(UnavailableBackend, match=f"no GPU {count} .* {present}"):
        Device(number=count)
