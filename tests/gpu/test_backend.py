"""The CUDA backend on a GPU, beside the CPU's: transforms, matrices, whole proofs."""

import cupy
import numpy as np
import pytest

from bench.chain import write_chain
from prover.backends import get_backend
from prover.backends.cpu import _cpu
from prover.backends.cuda.backend import CudaBackend
from prover.backends.cuda.device import Device
from prover.backends.cuda.matrices import LONG_ROW, compress
from prover.backends.cuda.transform import Transform
from prover.cli import main
from prover.errors import OutOfDeviceMemory
from prover.formats.r1cs import R1cs
from prover.formats.wtns import Witness
from prover.formats.zkey import COEFFICIENT, ProvingKey
from prover.groth16 import prove
from prover.pipeline import single
from prover.setup import Trapdoor, domain_size, write_key


@pytest.fixture
def device(gpu_devices):
    device = Device()
    gpu_devices.append(device)
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
    outcomes = set()
    for mebibytes in (1 << 20, 1024, 100, 80, 76, 74, 72, 70, 68, 8):
        device = Device(mebibytes << 20)
        backend = CudaBackend(device)
        for _ in range(2):
            try:
                assert bytes_of(key, witness, backend) == expected
                outcomes.add("proved")
            except OutOfDeviceMemory:
                outcomes.add("refused")
        with device.use():
            assert device.held <= device.limit
    assert outcomes == {"proved", "refused"}


def test_a_key_that_is_never_resident(curve, chain, monkeypatch):
    """Every part of it is copied in chunks, of which there are several."""
    key, witness = chain(curve.curve)
    expected = bytes_of(key, witness, get_backend("cpu"))
    monkeypatch.setattr(CudaBackend, "_room", lambda self, key: 0)
    monkeypatch.setattr(CudaBackend, "_chunk", lambda self, curve, group, n: 3000)
    assert bytes_of(key, witness, CudaBackend(Device())) == expected


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


def test_the_command(circuit, tmp_path, capfd):
    outputs = [tmp_path / "proof.json", tmp_path / "public.json"]
    words = ["prove", circuit.key, circuit.witness, *outputs, "--backend", "cuda"]
    assert main([*map(str, words), "--device-memory", "1GiB"]) == 0
    key = circuit.folder / "verification_key.json"
    assert main([*map(str, ("verify", key, outputs[1], outputs[0]))]) == 0
