"""The CUDA backend on a GPU, beside the CPU's: transforms, matrices, whole proofs."""

import io
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cupy
import numpy as np
import pytest

import bigmem
from bench.chain import write_chain
from bigmem.cuda import PinnedAllocator
from prover.backends import get_backend, get_cuda_backends
from prover.backends.cpu import _cpu
from prover.backends.cuda import staging
from prover.backends.cuda.backend import CudaBackend
from prover.backends.cuda.device import Device
from prover.backends.cuda.fixed_base import CudaMultiples
from prover.backends.cuda.matrices import LONG_ROW, compress
from prover.backends.cuda.staging import PINNED_BYTES
from prover.backends.cuda.transform import Transform
from prover.cli import main
from prover.curves import CURVES
from prover.errors import OutOfDeviceMemory
from prover.formats.r1cs import R1cs
from prover.formats.wtns import Witness
from prover.formats.zkey import COEFFICIENT, ProvingKey
from prover.groth16 import prove
from prover.pipeline import single
from prover.setup import CpuMultiples, Trapdoor, domain_size, write_key


@pytest.fixture
def device():
    device = Device()
    with device.use():
        yield device


@pytest.fixture
def generator():
    return np.random.default_rng(20260101)


def random_scalars(generator, *shape):
    data = generator.integers(0, 256, (*shape, 32), np.uint8)
    data[..., 31] &= 0x0F  # below both orders
    return data


@pytest.mark.parametrize("log", range(21))
def test_transforms_equal_the_cpu(curve, device, generator, log):
    x = random_scalars(generator, 3, 1 << log)
    out = device.array(x)
    Transform(device, curve.curve).odd_coset(out)
    for vector in x:
        _cpu.odd_coset(curve.name, vector)
    assert np.array_equal(device.download(out), x)


@pytest.mark.parametrize("most", range(5, 11))
@pytest.mark.parametrize("log", [10, 13, 17])
def test_any_number_of_stages_a_pass(curve, device, generator, log, most):
    x = random_scalars(generator, 1 << log)
    out = device.array(x)
    Transform(device, curve.curve, most).odd_coset(out)
    _cpu.odd_coset(curve.name, x)
    assert np.array_equal(device.download(out), x)


def test_split_and_merge_undo_each_other(curve, device, generator):
    n = 1 << 15
    x = random_scalars(generator, n)
    out, transform = device.array(x), Transform(device, curve.curve)
    transform.split(out)
    transform.merge(out)
    times_n = curve.rows([n * v % curve.r for v in curve.integers(x)], "scalar")
    assert np.array_equal(device.download(out), times_n)


def test_matrices_equal_the_cpu(curve, device, generator):
    domain, signals, count = 1 << 14, 5000, 200_000
    records = np.zeros(count, COEFFICIENT)
    for name, limit in (("matrix", 2), ("constraint", domain), ("signal", signals)):
        records[name] = generator.integers(0, limit, count)
    records["constraint"][: 10 * LONG_ROW] = 7
    few = random_scalars(generator, 50)
    records["value"] = few[generator.integers(0, len(few), count)]
    coefficients = records.view(np.uint8).reshape(count, -1)
    witness = random_scalars(generator, signals)
    witness[::2] = 0
    out = device.empty((2, domain, 32))
    matrices = compress(coefficients, domain)
    assert len(matrices.long) > 0
    matrices.to_device(device).multiply(device, curve.curve, device.array(witness), out)
    a, b = np.empty((2, domain, 32), np.uint8)
    _cpu.sparse_product(curve.name, coefficients, witness, a, b)
    assert np.array_equal(device.download(out), [a, b])


def test_uploads_go_through_pinned_memory(device, generator):
    """More than there are slots for, into a part of an array; the source changes at once."""
    host = generator.integers(0, 256, (3 << 20, 64), np.uint8)
    expected, dropped = host.copy(), []

    def drop(piece):
        dropped.append(len(piece))
        piece[:] = 0

    out = device.empty((len(host) + 5, 64))
    device.upload(host, out[5:], drop)
    assert not host.any()
    assert sum(dropped) == len(host)
    assert np.array_equal(device.download(out[5:]), expected)
    assert device.uploads == "pinned"
    staged = device._staging._allocator
    assert staged.flush(10)
    assert 0 < staged.stats().peak_resident <= PINNED_BYTES


def test_pinned_arrays_are_uploaded_as_they_are(device, generator):
    """And dropped when the GPU has read them: the source changes at once."""
    expected = generator.integers(0, 256, (3 << 20, 64), np.uint8)
    with PinnedAllocator(0) as allocator:
        host = bigmem.empty(expected.shape, np.uint8, allocator=allocator)
        host[:] = expected
        out = device.upload(host, drop=lambda piece: piece.fill(0))
        assert not host.any()
        assert np.array_equal(device.download(out), expected)
        del host
    assert device._staging._allocator.stats().allocations == 0


def test_a_proof_after_another_pins_nothing_anew(generator):
    """Four uploads each, as in seed mode, while the memory of the first is still being wiped."""
    device, host = Device(), generator.integers(0, 256, (1 << 20, 96), np.uint8)
    allocator = device._staging._allocator
    for _ in range(5):
        for _ in range(2):
            with device.use():
                for _ in range(4):
                    device.upload(host)
                with device.ahead():
                    device.upload(host)
                device.rejoin()
                device.synchronize()
        assert allocator.flush(10)
    assert allocator.stats().reclaimed == 0
    assert allocator.stats().peak_resident <= PINNED_BYTES


def test_uploads_ahead_do_not_wait(device, generator, gpu):
    """The device's own stream is at work for a while; what is copied ahead is there before."""
    host = generator.integers(0, 256, (1 << 20, 64), np.uint8)
    out = device.upload(host)  # there is pinned memory from here on
    out[:] = 0
    device.synchronize()
    gpu.spin(500, device._stream.ptr)
    with device.ahead():
        device.upload(host, out)
    device._copies.synchronize()
    assert not device._stream.done
    device.rejoin()
    assert np.array_equal(device.download(out), host)


def test_uploads_without_pinned_memory(generator, monkeypatch):
    def refuse(*given, **options):
        raise bigmem.BigmemError("no pinned memory here")

    monkeypatch.setattr(staging, "PinnedAllocator", refuse)
    told = []
    device = Device(notify=told.append)
    host = generator.integers(0, 256, (1 << 20, 96), np.uint8)
    with device.use():
        assert np.array_equal(device.download(device.upload(host)), host)
    assert device.uploads == "pageable: no pinned memory here"
    assert told[0].endswith("from pageable memory: no pinned memory here")


def bytes_of(key, witness, backend):
    proof = prove(key, witness, backend=backend, r=123456789, s=key.curve.r - 5)
    return proof.a.tobytes() + proof.b.tobytes() + proof.c.tobytes()


def test_proofs_of_the_fixtures(circuit):
    key, witness = ProvingKey.open(circuit.key), Witness.open(circuit.witness)
    backend = CudaBackend(Device())
    expected = bytes_of(key, witness, get_backend("cpu"))
    assert [bytes_of(key, witness, backend) for _ in range(2)] == [expected] * 2
    single.prove(key, witness, backend=backend)  # checks the proof


@pytest.fixture(scope="module")
def chain(request, tmp_path_factory):
    """A key and a witness of 2^13 constraints, made once a curve."""
    made = {}

    def make(curve):
        if curve.name not in made:
            folder = tmp_path_factory.mktemp("chain")
            circuit, witness = write_chain(folder, 13, curve)
            opened = R1cs.open(circuit)
            path = folder / "chain.zkey"
            with path.open("wb") as file:
                write_key(file, opened, Trapdoor.draw(curve, domain_size(opened)))
            made[curve.name] = ProvingKey.open(path), Witness.open(witness)
        return made[curve.name]

    return make


def test_proofs_under_a_limit(curve, chain):
    key, witness = chain(curve.curve)
    expected = bytes_of(key, witness, get_backend("cpu"))
    outcomes = {}
    for mebibytes in (1 << 20, 1024, 100, 80, 76, 74, 72, 70, 68, 40, 20, 15, 12, 10, 8, 6, 4):
        device = Device(mebibytes << 20)
        backend = CudaBackend(device)
        outcomes[mebibytes] = set()
        for _ in range(2):
            try:
                assert bytes_of(key, witness, backend) == expected
                outcomes[mebibytes].add("proved")
            except OutOfDeviceMemory:
                outcomes[mebibytes].add("refused")
        with device.use():
            assert device.held <= device.limit
    assert outcomes[1 << 20] == outcomes[1024] == {"proved"}
    assert outcomes[4] == {"refused"}


def test_a_key_that_is_never_resident(curve, chain, monkeypatch):
    """Every part of it is copied in chunks, of which there are several."""
    key, witness = chain(curve.curve)
    expected = bytes_of(key, witness, get_backend("cpu"))
    monkeypatch.setattr(CudaBackend, "_room", lambda self, key: 0)
    monkeypatch.setattr(CudaBackend, "_chunk", lambda self, curve, group, n: 3000)
    assert bytes_of(key, witness, CudaBackend(Device())) == expected


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("chunk", [8192, 4096, 1500, 300])
def test_streamed_sums_equal_the_unlimited_proof(curve, chain, monkeypatch, chunk, pinned):
    """One to many chunks, each copied while the one before it is added up."""
    key, witness = chain(curve.curve)
    expected = bytes_of(key, witness, CudaBackend(Device()))
    monkeypatch.setattr(CudaBackend, "_room", lambda self, key: 0)
    monkeypatch.setattr(CudaBackend, "_chunk", lambda self, curve, group, n: chunk)
    if not pinned:
        monkeypatch.setattr(
            staging, "PinnedAllocator", lambda *given, **options: PinnedAllocator(99)
        )
    device = Device(1 << 30)
    backend = CudaBackend(device)
    assert [bytes_of(key, witness, backend) for _ in range(3)] == [expected] * 3
    assert (device.uploads == "pinned") == pinned


def test_memory_that_others_took(curve, chain):
    """The device's own allocations fail; with room again, the same backend proves."""
    key, witness = chain(curve.curve)
    expected = bytes_of(key, witness, get_backend("cpu"))
    backend = CudaBackend(Device())
    hogs = []
    size, _ = cupy.cuda.Device().mem_info
    while size > 1 << 16:
        try:
            hogs.append(cupy.cuda.Memory(size))
        except cupy.cuda.runtime.CUDARuntimeError:
            size //= 2
    with pytest.raises(OutOfDeviceMemory):
        bytes_of(key, witness, backend)
    hogs.clear()
    assert bytes_of(key, witness, backend) == expected


def test_two_vectors_do(curve, chain):
    """The values of the quotient, in three vectors and in two."""
    key, witness = chain(curve.curve)
    device = Device()
    backend = CudaBackend(device)
    with device.use():
        w = device.upload(witness.values)
        three = device.download(backend._quotient_values_of(key, w, device.limit))
        two = device.download(backend._quotient_values_in_two(key, w))
    assert np.array_equal(three, two)


def test_keys_made_on_the_gpu_equal_the_cpus(curve, tmp_path):
    circuit = R1cs.open(write_chain(tmp_path, 12, curve.curve)[0])
    trapdoor = Trapdoor.draw(curve.curve, domain_size(circuit))
    keys = []
    for multiples in (None, CudaMultiples(Device(), curve.curve)):
        file = io.BytesIO()
        write_key(file, circuit, trapdoor, multiples=multiples)
        keys.append(file.getvalue())
    assert keys[0] == keys[1]


def test_multiples_equal_the_cpus(curve, group, generator):
    scalars = random_scalars(generator, 5000)
    scalars[:100] = 0
    scalars[:50, 31] = np.arange(50) % 16
    scalars[100:200] = curve.rows([curve.r - 1 - i for i in range(100)], "scalar")
    ours = CudaMultiples(Device(), curve.curve)(group, scalars)
    assert np.array_equal(ours, CpuMultiples(curve.curve)(group, scalars))


def run_command(*words):
    return main([*map(str, words)])


def test_a_key_by_command(multiplier, tmp_path):
    key = tmp_path / "made.zkey"
    words = ("setup", multiplier.r1cs, "-o", key, "--backend", "cuda", "--insecure-dev-key")
    assert run_command(*words) == 0
    outputs = [tmp_path / "proof.json", tmp_path / "public.json"]
    assert run_command("prove", key, multiplier.witness, *outputs, "--backend", "cuda") == 0


@pytest.mark.parametrize("devices", ["0", "0,0", "0,0,0"])
def test_workers_on_one_device(curve, chain, tmp_path, capfd, devices):
    key, witness = chain(curve.curve)
    figures, vk = tmp_path / "figures.json", tmp_path / "vk.json"
    words = (key.path, witness.path, "--repeat", 9, "--devices", devices, "-o", tmp_path)
    assert run_command("batch", *words, "--json", figures) == 0
    told = json.loads(figures.read_text())
    assert (told["backend"], told["workers"]) == ("cuda", len(devices.split(",")))
    assert run_command("export-vk", key.path, vk) == 0
    for one in told["each"]:
        assert run_command("verify", vk, one["public"], one["proof"]) == 0
    assert len({Path(one["proof"]).read_bytes() for one in told["each"]}) == 9


def test_workers_make_the_same_proofs(curve, chain):
    """Two backends of one device at the same time, and one alone."""
    key, witness = chain(curve.curve)
    expected = bytes_of(key, witness, get_backend("cpu"))
    backends = get_cuda_backends([0, 0])
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            made = pool.map(lambda backend: bytes_of(key, witness, backend), backends)
            assert list(made) == [expected] * 2


def test_a_device_that_is_not_there(multiplier, tmp_path, capfd):
    words = ("batch", multiplier.key, multiplier.witness, "-o", tmp_path, "--devices", "0,99")
    assert run_command(*words) == 2
    assert "no GPU 99" in capfd.readouterr().err


def test_the_first_use_tells_what_it_compiles(multiplier, tmp_path):
    """In a fresh process with an empty cache, then in one that finds it filled."""
    environment = {name: v for name, v in os.environ.items() if name != "CUPY_CACHE_IN_MEMORY"}
    environment["CUPY_CACHE_DIR"] = str(tmp_path / "cache")
    outputs = [tmp_path / "proof.json", tmp_path / "public.json"]
    words = ["prove", multiplier.key, multiplier.witness, *outputs, "--backend", "cuda"]
    told = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "prover", *map(str, words)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        told.append([line for line in done.stderr.splitlines() if line.startswith("compil")])
    title = CURVES[multiplier.curve].title
    before, after = told[0]
    assert before == (
        f"compiling CUDA kernels for {title}; once for this machine, CuPy keeps the result"
    )
    assert re.fullmatch(rf"compiled CUDA kernels for {title} in \d+\.\d s", after)
    assert told[1] == []


def test_the_command(circuit, tmp_path, capfd):
    outputs = [tmp_path / "proof.json", tmp_path / "public.json"]
    words = ["prove", circuit.key, circuit.witness, *outputs, "--backend", "cuda"]
    assert main([*map(str, words), "--device-memory", "1GiB"]) == 0
    key = circuit.folder / "verification_key.json"
    assert main([*map(str, ("verify", key, outputs[1], outputs[0]))]) == 0
