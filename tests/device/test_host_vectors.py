"""Proofs from vectors a, b, c of the host by the CUDA backend on an emulated device."""

import pytest

import bigmem
from prover.backends import get_backend
from prover.backends.base import Operands
from prover.errors import OutOfDeviceMemory
from prover.groth16 import prove, prove_operands
from prover.pipeline.assignment import Synthesis

BLINDING = {"r": 123456789, "s": 987654321}


def bytes_of(proof):
    return proof.a.tobytes() + proof.b.tobytes() + proof.c.tobytes()


@pytest.fixture
def assignment_of():
    def make(key, witness, vectors=True):
        return Synthesis(key, vectors=vectors, early=True).make(witness, lambda nbytes: None)

    return make


@pytest.mark.parametrize("vectors", [True, False])
def test_proofs_equal_the_cpu_backends(opened, device, make_backend, assignment_of, vectors):
    expected = bytes_of(prove(*opened, backend=get_backend("cpu"), **BLINDING))
    backend = make_backend(device)
    for _ in range(2):
        assignment = assignment_of(*opened, vectors)
        proof = prove_operands(opened[0], assignment, backend=backend, **BLINDING)
        assert bytes_of(proof) == expected
        assert assignment.w.shape[0] > 0  # the witness is its owner's to release


def test_matrices_stay_on_the_host(large, device, make_device, make_backend, assignment_of):
    key, witness = large
    backend = make_backend(device)
    for _ in range(2):
        before = device.uploaded
        prove_operands(key, assignment_of(*large), backend=backend, **BLINDING)
    assert device.uploaded - before == witness.values.nbytes + 3 * 32 * key.domain
    roomy = make_device()
    with_matrices = make_backend(roomy)  # it keeps what is resident
    prove(*large, backend=with_matrices, **BLINDING)
    assert device.used < roomy.used


class Watched:
    """Operands that call back when their vectors have been read."""

    def __init__(self, assignment, read):
        self._assignment, self._read = assignment, read
        self.w = assignment.w
        self.finite_a = self.finite_b = None
        self.sole = assignment.sole

    def vectors(self):
        return self._assignment.vectors()

    def read(self):
        self._assignment.read()
        self._read()


def test_vectors_have_been_read_when_all_are_on_the_device(
    large, device, make_backend, assignment_of
):
    key, witness = large
    told = []
    operands = Watched(assignment_of(*large), lambda: told.append(device.uploaded))
    prove_operands(key, operands, backend=make_backend(device), **BLINDING)
    assert told == [witness.values.nbytes + 3 * 32 * key.domain]  # and no point of a sum


def test_vectors_die_when_they_have_been_read(large, device, make_backend):
    key, witness = large
    allocator = bigmem.make("mapped")
    synthesis = Synthesis(key, vectors=True, early=True, allocator=allocator)
    assignment = synthesis.make(witness, lambda nbytes: None)
    before = allocator.stats().live
    left = []
    operands = Watched(assignment, lambda: left.append(allocator.stats().live))
    prove_operands(key, operands, backend=make_backend(device), **BLINDING)
    of_vectors = 3 * -(-32 * key.domain // 4096) * 4096
    assert left == [before - of_vectors]


def test_only_what_nobody_else_uses_is_said_to_have_been_read(
    opened, device, make_backend, assignment_of
):
    """Pinned memory then waits for no work of others."""
    backend = make_backend(device)
    assignment = assignment_of(*opened)
    vectors = assignment.vectors()
    own = Operands(assignment.w)  # of a library's user, say
    own.vectors = lambda: vectors
    prove_operands(opened[0], own, backend=backend, **BLINDING)
    assert device.read == []
    assignment = assignment_of(*opened)
    expected = [array.ctypes.data for array in (assignment.w, *assignment.vectors())]
    told = []
    operands = Watched(assignment, lambda: told.extend(device.read))
    prove_operands(opened[0], operands, backend=backend, **BLINDING)
    assert told == device.read == expected  # before the vectors are released


def test_a_refusal_when_the_vectors_have_gone(large, device, make_backend, assignment_of):
    """Then the matrices make them again."""
    expected = bytes_of(prove(*large, backend=get_backend("cpu"), **BLINDING))
    operands = Watched(assignment_of(*large), lambda: setattr(device, "refusals", 1))
    proof = prove_operands(large[0], operands, backend=make_backend(device), **BLINDING)
    assert operands.vectors() is None
    assert device.refusals == 0
    assert bytes_of(proof) == expected


def test_proofs_under_any_limit(large, make_device, make_backend, assignment_of):
    expected = bytes_of(prove(*large, backend=get_backend("cpu"), **BLINDING))
    roomy = make_device()
    prove_operands(large[0], assignment_of(*large), backend=make_backend(roomy), **BLINDING)
    made, refused = 0, 0
    for limit in range(roomy.peak, 10_000, -(roomy.peak // 12)):
        device = make_device(limit)
        try:
            proof = prove_operands(
                large[0], assignment_of(*large), backend=make_backend(device), **BLINDING
            )
        except OutOfDeviceMemory:
            refused += 1
            continue
        made += 1
        assert bytes_of(proof) == expected
        assert device.peak <= limit
    assert made > 0
    assert refused > 0
