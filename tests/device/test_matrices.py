"""Compressed rows of a key's matrices, and their products."""

import threading
from dataclasses import fields

import numpy as np
import pytest

from prover.backends.cpu import _cpu
from prover.backends.cuda import matrices
from prover.backends.cuda.matrices import LONG_ROW, compress
from prover.formats.zkey import COEFFICIENT

DOMAIN, SIGNALS = 512, 300


def terms(curve, keys, values):
    """Records of (matrix, constraint, signal) and values."""
    records = np.zeros(len(keys), COEFFICIENT)
    for name, column in zip(("matrix", "constraint", "signal"), np.array(keys).T, strict=True):
        records[name] = column
    records["value"] = values
    return records.view(np.uint8).reshape(len(keys), COEFFICIENT.itemsize)


def witness_of(curve, generator, random_scalars):
    w = random_scalars((SIGNALS,))
    w[generator.random(SIGNALS) < 0.5] = 0
    w[::7] = 0
    w[::7, 0] = 1
    return w


def assert_equal_products(curve, device, coefficients, witness):
    compressed = compress(coefficients, DOMAIN)
    out = device.empty((2, DOMAIN, 32))
    compressed.to_device(device).multiply(device, curve, device.array(witness), out)
    a, b = np.empty_like(out[0]), np.empty_like(out[1])
    _cpu.sparse_product(curve.name, coefficients, witness, np.asarray(a), np.asarray(b))
    assert np.array_equal(out[0], a)
    assert np.array_equal(out[1], b)
    w, resident = device.array(witness), compressed.to_device(device)
    one = device.empty((DOMAIN, 32))
    for matrix, expected in enumerate((a, b)):
        resident.multiply_one(device, curve, w, matrix, one)
        assert np.array_equal(one, expected)
    resident.multiply_one(device, curve, w, 0, one, times=True)
    product = np.empty_like(a)
    _cpu.multiply(curve.name, np.asarray(a), np.asarray(b), np.asarray(product))
    assert np.array_equal(one, product)
    return compressed


def random_keys(generator, count, order):
    keys = np.stack([generator.integers(0, limit, count) for limit in (2, DOMAIN, SIGNALS)], axis=1)
    if order == "by constraint":
        keys = keys[np.argsort(keys[:, 1], kind="stable")]
    elif order == "by matrix and constraint":
        keys = keys[np.lexsort((keys[:, 1], keys[:, 0]))]
    return keys


@pytest.mark.parametrize("order", ["by constraint", "by matrix and constraint", "none"])
@pytest.mark.parametrize("count", [1, 2, 3000])
def test_products_equal_the_cpu(curve, device, generator, random_scalars, order, count):
    few = random_scalars((5,))
    few[0] = 0
    values = few[generator.integers(0, len(few), count)]
    coefficients = terms(curve, random_keys(generator, count, order), values)
    witness = witness_of(curve, generator, random_scalars)
    compressed = assert_equal_products(curve, device, coefficients, witness)
    assert len(compressed.coefficients) == len(np.unique(values, axis=0))


def test_rows_of_very_unlike_lengths(curve, device, generator, random_scalars):
    lengths = {3: LONG_ROW, 4: LONG_ROW + 1, 7: 1000, DOMAIN - 1: 5000, 0: 1}
    keys = [
        (matrix, row, generator.integers(SIGNALS))
        for matrix in (0, 1)
        for row, length in lengths.items()
        for _ in range(length if matrix == 0 else 7)
    ]
    coefficients = terms(curve, keys, random_scalars((len(keys),)))
    witness = witness_of(curve, generator, random_scalars)
    compressed = assert_equal_products(curve, device, coefficients, witness)
    assert compressed.long.tolist() == [4, 7, DOMAIN - 1]
    rows = np.diff(compressed.starts)[compressed.short]
    assert (rows[1:] <= rows[:-1]).all()
    assert sorted([*compressed.short, *compressed.long]) == list(range(2 * DOMAIN))


def test_pieces_share_coefficients(curve, device, generator, random_scalars, monkeypatch):
    monkeypatch.setattr(matrices, "_PIECE_TERMS", 100)
    few = random_scalars((9,))
    values = few[generator.integers(0, len(few), 1500)]
    keys = random_keys(generator, len(values), "by constraint")
    witness = witness_of(curve, generator, random_scalars)
    compressed = assert_equal_products(curve, device, terms(curve, keys, values), witness)
    assert len(compressed.coefficients) == len(few)
    monkeypatch.setattr(matrices, "_MOST_KNOWN", 4)
    compressed = assert_equal_products(curve, device, terms(curve, keys, values), witness)
    assert len(few) < len(compressed.coefficients) < len(values)


def parts(compressed):
    return [getattr(compressed, part.name).tolist() for part in fields(compressed)]


@pytest.mark.parametrize("cores", [1, 2, 5])
@pytest.mark.parametrize("threads", ["given", "refused at once", "refused later"])
def test_the_order_of_threads_does_not_tell(
    curve, generator, random_scalars, monkeypatch, cores, threads
):
    """New values come in every piece, some of them in several that are read at a time."""
    monkeypatch.setattr(matrices, "_PIECE_TERMS", 64)
    values = random_scalars((400,))[np.sort(generator.integers(0, 400, 3000))]
    values[::5] = values[generator.integers(0, 3000, 600)]
    coefficients = terms(curve, random_keys(generator, 3000, "none"), values)
    monkeypatch.setattr(matrices.os, "sched_getaffinity", lambda _: {0})
    expected = compress(coefficients, DOMAIN)
    assert len(expected.coefficients) == len(np.unique(values, axis=0))

    monkeypatch.setattr(matrices.os, "sched_getaffinity", lambda _: set(range(cores)))
    allowed = {"given": 1 << 20, "refused at once": 0, "refused later": 4}[threads]
    started, start = [0], threading.Thread.start

    def refuse(thread):
        started[0] += 1
        if started[0] > allowed:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    told, added = [], []
    add = matrices._Coefficients.add

    def note(known, values):
        added.extend(np.unique(values, axis=0))
        return add(known, values)

    monkeypatch.setattr(matrices._Coefficients, "add", note)
    found = compress(coefficients, DOMAIN, lambda rows: told.append(len(rows)))
    assert parts(found) == parts(expected)
    assert sum(told) >= len(coefficients)
    # What several pieces of a round have is looked up by all but the first.
    assert len(added) == len(expected.coefficients)


@pytest.mark.parametrize("threads", [1, 3])
def test_as_many_threads_as_are_asked_for(curve, generator, random_scalars, monkeypatch, threads):
    monkeypatch.setattr(matrices, "_PIECE_TERMS", 8)
    values = random_scalars((400,))
    coefficients = terms(curve, random_keys(generator, len(values), "none"), values)
    asked, side_by_side = set(), matrices.side_by_side

    def note(work, items, most):
        asked.add(most)
        return side_by_side(work, items, most)

    monkeypatch.setattr(matrices, "side_by_side", note)
    compress(coefficients, DOMAIN, threads=threads)
    assert asked == {threads}


def test_a_key_without_terms(curve, device, generator, random_scalars):
    witness = witness_of(curve, generator, random_scalars)
    compressed = assert_equal_products(curve, device, terms(curve, [(0, 0, 0)], 0)[:0], witness)
    assert len(compressed.coefficients) == len(compressed.entries) == 0


def test_values_of_one_hash(curve, device, generator, random_scalars):
    values = random_scalars((40,))
    twins = values.copy()
    words = twins.view(np.uint64)
    words[:, 0] += matrices._MULTIPLIERS[1]
    words[:, 1] -= matrices._MULTIPLIERS[0]
    both = np.concatenate([values, twins])
    keys = random_keys(generator, len(both), "none")
    witness = witness_of(curve, generator, random_scalars)
    compressed = assert_equal_products(curve, device, terms(curve, keys, both), witness)
    assert len(compressed.coefficients) == len(both)
