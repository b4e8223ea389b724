"""Whole proofs by the CUDA backend on an emulated device: the bytes of the CPU backend's."""

import sys

import numpy as np
import pytest

import bigmem
from bench.chain import write_chain
from prover import backends
from prover.backends import get_backend
from prover.backends.cuda import backend as backend_module
from prover.backends.cuda.matrices import compress
from prover.backends.cuda.transform import Transform
from prover.curves import CURVES
from prover.errors import OutOfDeviceMemory, UnavailableBackend
from prover.formats.r1cs import R1cs
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.groth16 import prove
from prover.pipeline.batch import stages
from prover.setup import Trapdoor, domain_size, write_key


def bytes_of(key, witness, backend):
    proof = prove(key, witness, backend=backend, r=123456789, s=key.curve.r - 5)
    return proof.a.tobytes() + proof.b.tobytes() + proof.c.tobytes()


def test_proofs_equal_the_cpu_backends(opened, device, make_backend):
    assert bytes_of(*opened, make_backend(device)) == bytes_of(*opened, get_backend("cpu"))


def test_a_second_proof_copies_the_witness_only(opened, device, make_backend):
    key, witness = opened
    backend = make_backend(device)
    first = bytes_of(key, witness, backend)
    before, used = device.uploaded, device.used
    assert bytes_of(key, witness, backend) == first
    assert device.uploaded - before == witness.values.nbytes
    assert device.used == used


@pytest.mark.parametrize("least_chunk", [1024, 100])
def test_proofs_under_any_limit(large, make_device, make_backend, monkeypatch, least_chunk):
    monkeypatch.setattr(backend_module, "_LEAST_CHUNK", least_chunk)
    expected = bytes_of(*large, get_backend("cpu"))
    roomy = make_device()
    bytes_of(*large, make_backend(roomy))
    copied, refused = set(), 0
    for limit in range(roomy.peak, 10_000, -4_000):
        device = make_device(limit)
        backend = make_backend(device)
        try:
            bytes_of(*large, backend)
        except OutOfDeviceMemory:
            refused += 1
            assert device.used == 0
            continue
        assert limit >= backend._least_bytes(large[0])
        device.uploaded = 0
        assert bytes_of(*large, backend) == expected
        copied.add(device.uploaded)
        assert device.peak <= limit
    assert refused > 0


def test_gaps_that_no_chunk_fits_into(large, make_device, make_backend, monkeypatch):
    """What is left counts gaps, too; a second try takes less of it at a time."""
    monkeypatch.setattr(backend_module, "_LEAST_CHUNK", 8)
    roomy = make_device()
    bytes_of(*large, make_backend(roomy))

    def proves(most, shares):
        class Fragmented(make_device):
            def empty(self, shape, dtype=np.uint8):
                if int(np.prod(shape)) * np.dtype(dtype).itemsize > most:
                    raise MemoryError
                return super().empty(shape, dtype)

        monkeypatch.setattr(backend_module, "_CHUNK_SHARES", shares)
        try:
            bytes_of(*large, make_backend(Fragmented(roomy.peak // 2)))
        except OutOfDeviceMemory:
            return False
        return True

    shares, gaps = backend_module._CHUNK_SHARES, range(8_000, 40_000, 1_000)
    twice = {most for most in gaps if proves(most, shares)}
    once = {most for most in gaps if proves(most, shares[:1] * 2)}
    assert once < twice


@pytest.mark.parametrize(
    "bytes_a_row",
    [
        256,  # 1 GiB for 2^22 rows
        165,  # of which two vectors and the matrices take 144, three 176
    ],
)
def test_proofs_in_little_memory_a_row(
    curve, make_device, make_backend, tmp_path, monkeypatch, bytes_a_row
):
    monkeypatch.setattr(backend_module, "_LEAST_CHUNK", 16)
    path, witness_path = write_chain(tmp_path, 11, curve)
    circuit = R1cs.open(path)
    with (tmp_path / "chain.zkey").open("wb") as file:
        write_key(file, circuit, Trapdoor.draw(curve, domain_size(circuit)))
    key, witness = ProvingKey.open(file.name), Witness.open(witness_path)
    device = make_device(bytes_a_row * key.domain)
    backend = make_backend(device)
    expected = bytes_of(key, witness, get_backend("cpu"))
    for _ in range(2):
        assert bytes_of(key, witness, backend) == expected
    assert device.peak <= device.limit


def test_a_refusal_says_what_is_needed(large, make_device, make_backend):
    # w, the twiddles; 20 bytes a scalar and 2000 for the workspace; the points of B in G2
    needed = {"bn128": r"41\.29", "bls12381": r"53\.85"}[large[0].curve.name]
    with pytest.raises(OutOfDeviceMemory, match=f"{needed} KiB of GPU memory .* 9\\.766 KiB"):
        bytes_of(*large, make_backend(make_device(10_000)))
    with pytest.raises(OutOfDeviceMemory, match="of 0 bytes that may be used"):
        bytes_of(*large, make_backend(make_device(0)))


def test_a_refused_allocation_costs_nothing_but_time(large, device, make_backend):
    backend = make_backend(device)
    expected = bytes_of(*large, backend)
    for _ in range(2):
        device.refusals = 1
        assert bytes_of(*large, backend) == expected
    device.refusals = 2
    with pytest.raises(OutOfDeviceMemory):
        bytes_of(*large, backend)
    assert bytes_of(*large, backend) == expected


class DriverError(RuntimeError):
    """As CuPy's, which carry CUDA's number."""

    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


@pytest.mark.parametrize("call", ["record", "array", "synchronize", "upload"])
def test_what_the_driver_itself_has_no_memory_for_is_tried_again(
    large, device, make_backend, monkeypatch, call
):
    backend, expected = make_backend(device), bytes_of(*large, get_backend("cpu"))
    original, left = getattr(device, call), [1]

    def refuse(*arguments, status=2):
        if left[0] > 0:
            left[0] -= 1
            raise DriverError(status)
        return original(*arguments)

    monkeypatch.setattr(device, call, refuse)
    assert bytes_of(*large, backend) == expected
    assert left == [0]
    left[0] = 2
    with pytest.raises(OutOfDeviceMemory, match=r"\(the last refusal: status 2\); use"):
        bytes_of(*large, make_backend(device))
    left[0] = 1
    monkeypatch.setattr(device, call, lambda *_: refuse(status=700))
    with pytest.raises(DriverError, match="status 700"):
        bytes_of(*large, make_backend(device))


def test_the_last_refusal_is_told(large, make_device, make_backend, monkeypatch):
    """Memory of the host may be what lacks."""

    def refuse(*_):
        raise MemoryError("no room on the host\nor so")

    monkeypatch.setattr(backend_module, "compress", refuse)
    with pytest.raises(OutOfDeviceMemory, match=r"\(the last refusal: no room on the host\); use"):
        bytes_of(*large, make_backend(make_device()))


def test_what_other_tables_take_is_no_room(large, device, make_backend):
    backend = make_backend(device)
    key, _ = large
    alone = backend._room(key)
    (other,) = (one for one in CURVES.values() if one != key.curve)
    for curve, log in ((other, 12), (key.curve, 13)):
        backend._transform(curve).odd_coset(device.empty((1 << log, 32)))
    grown = Transform.table_bytes(1 << 13) - Transform.table_bytes(key.domain)
    assert alone - backend._room(key) == Transform.table_bytes(1 << 12) + grown


def test_what_others_hold_is_no_room(large, make_device, make_backend, monkeypatch):
    """A proof does what it does with a limit of what they leave: it keeps what fits beside it."""
    monkeypatch.setattr(backend_module, "_LEAST_CHUNK", 16)
    roomy = make_device()
    expected = bytes_of(*large, make_backend(roomy))
    left = roomy.peak * 3 // 4

    def copied(device):
        backend, copied = make_backend(device), []
        for _ in range(2):
            device.uploaded = 0
            assert bytes_of(*large, backend) == expected
            copied.append(device.uploaded)
        return copied

    device = make_device(2 * roomy.peak)
    device.taken = device.limit - left
    first, second = copied(device)
    assert [first, second] == copied(make_device(left))
    assert large[1].values.nbytes < second < first <= roomy.uploaded
    assert device.peak <= left


def test_keys_make_room_for_each_other(large, make_device, make_backend):
    key, witness = large
    roomy = make_device()
    expected = bytes_of(key, witness, make_backend(roomy))
    device = make_device(roomy.peak * 5 // 4)
    backend = make_backend(device)
    keys = [key, ProvingKey.open(key.path)]
    for one in keys * 2:
        assert bytes_of(one, witness, backend) == expected
    assert device.peak <= device.limit


def test_stages_are_those_of_the_cpu_backend(large, device, make_backend):
    names = []
    for backend in (get_backend("cpu"), make_backend(device)):
        with bigmem.record_layers() as recorded:
            bytes_of(*large, backend)
        names.append(list(stages(recorded().layers)))
    names[0].remove("allocate")  # host memory
    names[1].remove("release")  # the device's
    assert names[0] == names[1]
    assert list(backend.device_seconds()) == [name for name in names[1] if name != "assembly"]


def test_two_vectors_do_where_three_do_not_fit(large, device, make_device, make_backend):
    """The least peak is that of the witness, two vectors, their table and the matrices."""
    key, witness = large
    expected = bytes_of(key, witness, get_backend("cpu"))
    matrices = compress(key.coefficients, key.domain)
    table = Transform.table_bytes(key.domain)
    vectors = witness.values.nbytes + 2 * key.domain * 32 + table
    device.limit = vectors + matrices.nbytes + 2048  # roots of unity, factors
    backend = make_backend(device)
    proof = backend._quotient_values_in_two(key, device.upload(witness.values))
    roomy = make_device()
    other = make_backend(roomy)
    again = other._quotient_values_of(key, roomy.upload(witness.values), 1 << 40)
    assert np.array_equal(proof, again)
    assert device.peak <= device.limit < vectors + matrices.nbytes + key.domain * 32
    assert bytes_of(key, witness, other) == expected


@pytest.fixture
def no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


def test_without_cupy(no_cupy):
    with pytest.raises(UnavailableBackend, match=r"CuPy .*--backend cpu"):
        get_backend("cuda")
    told = []
    assert get_backend("auto", domain=1 << 20, notify=told.append).name == "cpu"
    (line,) = told
    assert line.startswith("proving on the CPU: the cuda backend needs CuPy")


def test_a_folder_that_cupy_cannot_make(monkeypatch, tmp_path):
    """It makes that of its cache when it is imported."""
    text = 'raise NotADirectoryError(20, "Not a directory", "/dev/null/.cupy/kernel_cache")'
    (tmp_path / "cupy.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    reason = (
        r"cannot be kept \(/dev/null/\.cupy/kernel_cache: not a directory\): set CUPY_CACHE_DIR"
    )
    with pytest.raises(UnavailableBackend, match=reason):
        get_backend("cuda")
    told = []
    assert get_backend("auto", domain=1 << 20, notify=told.append).name == "cpu"
    assert len(told) == 1
    assert told[0].startswith("proving on the CPU: compiled kernels cannot be kept")


def test_small_circuits_never_look_for_a_gpu(monkeypatch):
    def fail(*arguments, **options):
        raise AssertionError

    monkeypatch.setattr("prover.backends.cuda.device.Device.__init__", fail)
    assert get_backend("auto").name == "cpu"
    assert get_backend("auto", domain=backends.GPU_WORK // 2).name == "cpu"
    small, many = backends.GPU_DOMAIN // 2, backends.GPU_WORK
    assert get_backend("auto", domain=small, proofs=many).name == "cpu"
    proofs = backends.GPU_WORK // backends.GPU_DOMAIN
    assert get_backend("auto", domain=backends.GPU_DOMAIN, proofs=proofs - 1).name == "cpu"
    for enough in ({"domain": backends.GPU_WORK}, {"domain": small * 2, "proofs": proofs}):
        with pytest.raises(AssertionError):
            get_backend("auto", **enough)
