"""Assignments of circuits, and the masks of their key, against Python's integers."""

import numpy as np
import pytest

import bigmem
from prover.errors import MismatchedFiles
from prover.formats.wtns import Witness
from prover.formats.zkey import COEFFICIENT, ProvingKey
from prover.pipeline.assignment import Masks, Synthesis


@pytest.fixture
def key(circuit):
    return ProvingKey.open(circuit.key)


@pytest.fixture
def witness(circuit):
    return Witness.open(circuit.witness)


@pytest.fixture
def returned():
    return []


def integers(rows):
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


def used_signals(key, matrix):
    """The signals that a matrix of the key has a coefficient for."""
    records = key.coefficients.view(COEFFICIENT).reshape(-1)
    return set(records["signal"][records["matrix"] == matrix].tolist())


def test_masks_tell_which_points_are_infinite(key):
    masks = Masks.of(key)
    for mask, points in ((masks.a, key.a1), (masks.b, key.b1), (masks.b, key.b2)):
        assert mask.tolist() == [any(row.tobytes()) for row in points]
    inputs = key.public + 1
    assert masks.a_aux.tolist() == masks.a.tolist()[inputs:]
    assert masks.b_input.tolist() == masks.b.tolist()[:inputs]
    assert masks.b_aux.tolist() == masks.b.tolist()[inputs:]


def test_masks_are_the_signals_that_the_matrices_use(key):
    """A signal without a term has no point; in these circuits no terms of one cancel."""
    masks = Masks.of(key)
    assert set(np.flatnonzero(masks.a)) == used_signals(key, 0)
    assert set(np.flatnonzero(masks.b)) == used_signals(key, 1)
    assert not masks.b.all()  # in every fixture there is something to skip


def test_vectors_are_the_products_of_the_matrices(key, witness, returned):
    synthesis = Synthesis(key, vectors=True, early=True)
    assignment = synthesis.make(witness, returned.append)
    r, w = key.curve.r, integers(witness.values)
    assert integers(assignment.w) == w
    assert assignment.public == w[1 : key.public + 1]
    radix = 1 << 256
    expected = [[0] * key.domain, [0] * key.domain]
    for matrix, row, signal, value in key.coefficients.view(COEFFICIENT).reshape(-1).tolist():
        coefficient = int.from_bytes(bytes(value), "little") * pow(radix, -2, r)
        expected[matrix][row] = (expected[matrix][row] + coefficient * w[signal]) % r
    expected.append([a * b % r for a, b in zip(*expected, strict=True)])
    vectors = assignment.vectors()
    assert [integers(vector) for vector in vectors] == [
        [value * radix % r for value in values] for values in expected
    ]


@pytest.mark.parametrize("early", [True, False])
def test_what_is_released_is_told_and_gone(key, witness, returned, early):
    allocator = bigmem.make("mapped")
    synthesis = Synthesis(key, vectors=True, early=early, allocator=allocator)
    masks = allocator.stats().live
    assert masks == synthesis.mask_bytes
    assignment = synthesis.make(witness, returned.append)
    assert allocator.stats().live - masks == synthesis.nbytes
    assignment.read()
    of_vectors = 3 * -(-key.domain * 32 // 4096) * 4096
    assert returned == ([of_vectors] if early else [])
    assert (assignment.vectors() is None) == early
    assert allocator.stats().live - masks == synthesis.nbytes - sum(returned)
    assignment.release()
    assert sum(returned) == synthesis.nbytes
    assert allocator.stats().live == masks
    assignment.release()
    assert sum(returned) == synthesis.nbytes


def test_without_vectors(key, witness, returned):
    synthesis = Synthesis(key, vectors=False, early=True)
    assignment = synthesis.make(witness, returned.append)
    assert assignment.vectors() is None
    assignment.read()
    assert returned == []
    assignment.release()
    assert sum(returned) == synthesis.nbytes < 32 * key.signals + 4096


def test_nobody_sees_a_witness_by_printing(key, witness, returned):
    assignment = Synthesis(key, vectors=True, early=True).make(witness, returned.append)
    assert "array" not in repr(assignment)


def test_a_witness_of_another_circuit(multiplier, returned):
    key = ProvingKey.open(multiplier.key)
    other = Witness.open(multiplier.folder.parent / "manypub" / "witness.wtns")
    with pytest.raises(MismatchedFiles):
        Synthesis(key, vectors=True, early=True).make(other, returned.append)
