"""Sums of a key that is not resident: chunks are copied while others are added up."""

from contextlib import contextmanager

import numpy as np
import pytest
from emulated_device import EmulatedDevice, HostPointSums

from prover.backends import get_backend
from prover.backends.cuda import msm
from prover.backends.cuda.backend import CudaBackend
from prover.curves import CURVES
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.groth16 import prove

CHUNK = 7


class LateDevice(EmulatedDevice):
    """What is uploaded ahead arrives when `rejoin` asks for it, and not before."""

    def __init__(self):
        super().__init__()
        self.is_ahead = False
        self.under_way = []

    @contextmanager
    def ahead(self):
        self.is_ahead = True
        yield
        self.is_ahead = False

    def upload(self, rows, out=None, drop=lambda rows: None):
        if not self.is_ahead:
            return super().upload(rows, out, drop)
        out[...] = 0xA5
        self.under_way.append((out, np.array(rows)))
        drop(rows)
        return out

    def rejoin(self):
        for out, rows in self.under_way:
            out[...] = rows
        self.under_way.clear()


class LateSums(HostPointSums):
    """Looks at the points when the sum is asked for, and not before."""

    def add(self, curve, group, points, scalars):
        return lambda: HostPointSums.add(self, curve, group, points, scalars)

    def finish(self, pending):
        return pending()


class SumsWithoutMemory(HostPointSums):
    """Fails in the midst of a streamed sum, while the next chunk is under way."""

    sorts = 0

    def sort(self, curve, scalars):
        self.sorts += 1
        if self.sorts == 3:
            raise MemoryError
        return super().sort(curve, scalars)


@pytest.fixture
def opened(multiplier):
    folder = multiplier.folder.parent / "manypub"
    return ProvingKey.open(folder / "circuit.zkey"), Witness.open(folder / "witness.wtns")


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    monkeypatch.setattr(CudaBackend, "_room", lambda self, key: 0)


def proof_of(opened, backend):
    proof = prove(*opened, backend=backend, r=123456789, s=5)
    return [point.tobytes() for point in (proof.a, proof.b, proof.c)]


@pytest.mark.parametrize("make_sums", [HostPointSums, LateSums])
@pytest.mark.parametrize("make_device", [EmulatedDevice, LateDevice])
@pytest.mark.parametrize("chunk", [1 << 20, 20, CHUNK])
def test_a_streamed_key_gives_the_same_proof(opened, monkeypatch, chunk, make_device, make_sums):
    """However early or late copies and sums come, within what was asked of them."""
    monkeypatch.setattr(CudaBackend, "_chunk", lambda self, curve, group, n: chunk)
    device = make_device()
    backend = CudaBackend(device, make_sums(device))
    assert proof_of(opened, backend) == proof_of(opened, get_backend("cpu"))


def test_a_sum_that_fails_leaves_no_copy_under_way(opened, monkeypatch):
    """Its memory may be somebody else's as soon as it has failed."""
    monkeypatch.setattr(CudaBackend, "_chunk", lambda self, curve, group, n: CHUNK)
    device = LateDevice()
    backend = CudaBackend(device, SumsWithoutMemory(device))
    key, witness = opened
    with pytest.raises(MemoryError):
        backend._streamed_sum(key, 1, key.a1, device.upload(witness.values))
    assert device.under_way == []
    assert proof_of(opened, backend) == proof_of(opened, get_backend("cpu"))


def test_no_points_are_the_infinity(opened, device):
    key, witness = opened
    backend = CudaBackend(device, HostPointSums(device))
    total = backend._streamed_sum(key, 1, key.a1[:0], device.upload(witness.values[:0]))
    assert total.shape == (1, key.a1.shape[1])
    assert not total.any()


@pytest.mark.parametrize("n", [1, 100, 4000, 100_000])
def test_chunks_leave_room_for_two_buffers(opened, make_device, n):
    """Of the points of all chunks but the last, which has none to follow it."""
    curve = opened[0].curve
    for limit in (1 << 20, 1 << 22, 1 << 24, 1 << 28):
        device = make_device(limit)
        backend = CudaBackend(device, HostPointSums(device))
        chunk = backend._chunk(curve, 2, n)
        buffers = min(2, -(-n // chunk))
        needed = buffers * chunk * curve.point_bytes(2) + backend._workspace(curve, 2, chunk)
        assert chunk == n or needed <= limit or chunk <= 1 << 10
        assert chunk <= n


class FewSums(HostPointSums):
    """Sorts few scalars at a time, however much memory there is."""

    def most_scalars(self, curve):
        return CHUNK

    def sort(self, curve, scalars):
        assert len(scalars) <= CHUNK
        return super().sort(curve, scalars)


def test_sums_too_long_to_be_sorted_are_streamed(opened, monkeypatch):
    monkeypatch.setattr(CudaBackend, "_room", lambda self, key: 1 << 40)
    device = EmulatedDevice()
    backend = CudaBackend(device, FewSums(device))
    assert proof_of(opened, backend) == proof_of(opened, get_backend("cpu"))


@pytest.mark.parametrize("curve", CURVES.values())
def test_positions_of_entries_fit_32_bits(curve):
    most = msm.most_scalars(curve)
    assert most > 1 << 28  # the largest domain of BN254
    for dense in (most, most - 1, 1 << 28, *(1 << bits for bits in range(28))):
        assert dense * msm.choose_windows(curve, dense).count < (1 << 32) - 2**23


class Watched(EmulatedDevice):
    """Notes in which order memory is asked for and other streams are waited for."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def empty(self, shape, dtype=np.uint8):
        self.calls.append("empty")
        return super().empty(shape, dtype)

    def upload(self, rows, out=None, drop=lambda rows: None):
        self.calls.append("upload")
        return super().upload(rows, out, drop)

    def rejoin(self):
        self.calls.append("rejoin")


class InterruptedSums(HostPointSums):
    """Interrupted when the first sum has been started, and not again."""

    interrupted = False

    def add(self, curve, group, points, scalars):
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().add(curve, group, points, scalars)


def test_a_proof_waits_for_what_an_interrupted_one_has_left(opened, monkeypatch):
    """Its memory is free, and other streams may still write to it."""
    monkeypatch.setattr(CudaBackend, "_room", lambda self, key: 1 << 40)
    device = Watched()
    backend = CudaBackend(device, InterruptedSums(device))
    with pytest.raises(KeyboardInterrupt):
        proof_of(opened, backend)
    device.calls.clear()
    assert proof_of(opened, backend) == proof_of(opened, get_backend("cpu"))
    assert device.calls[0] == "rejoin"
