"""Scalar-field vectors on the GPU: the transform, sparse products, digits."""

import cupy
import numpy as np
import pytest

from prover.backends.cpu import _cpu


@pytest.fixture
def vectors(program):
    return program("vectors.cu")


def transform_on_device(vectors, x, log):
    values = cupy.asarray(x)
    twiddles = cupy.empty((max(1, len(x) // 2), 32), np.uint8)
    vectors.run("odd_coset", values, twiddles, np.int32(log), threads=128)
    return cupy.asnumpy(values)


@pytest.mark.parametrize("log", range(7))
def test_small_transforms(curve, vectors, log, rng):
    """Values of a polynomial at the N-th roots become its values at the odd 2N-th roots."""
    n, r = 1 << log, curve.r
    omega = curve.curve.root_of_unity(2 * n)
    coefficients = [rng.choice([0, r - 1, rng.randrange(r)]) for _ in range(n)]

    def evaluate(exponents):
        return [
            sum(c * pow(omega, k * i, r) for i, c in enumerate(coefficients)) % r for k in exponents
        ]

    x = curve.montgomery(evaluate(range(0, 2 * n, 2)), "scalar")
    out = transform_on_device(vectors, x, log)
    assert curve.standard(out, "scalar") == evaluate(range(1, 2 * n, 2))


@pytest.mark.parametrize("log", [1, 7, 12, 15])
def test_transforms_equal_the_cpu(curve, vectors, log, rng):
    x = curve.rows([rng.randrange(curve.r) for _ in range(1 << log)], "scalar")
    out = transform_on_device(vectors, x, log)
    _cpu.odd_coset(curve.name, x, 1)
    assert np.array_equal(out, x)


@pytest.mark.parametrize("count", [0, 1, 700])
def test_sparse_product(curve, vectors, count, rng):
    r, constraints, signals = curve.r, 257, 50
    radix = curve.radix("scalar")
    terms = np.zeros((count, 44), np.uint8)
    witness = [0, 1, 2, r - 1] + [rng.randrange(r) for _ in range(signals - 4)]
    expected = [[0] * constraints, [0] * constraints]
    for term in terms:
        matrix, row, signal = rng.randrange(2), rng.randrange(constraints), rng.randrange(signals)
        value = rng.choice([0, 1, r - 1, rng.randrange(r)])
        term[:12] = np.array([matrix, row, signal], "<u4").view(np.uint8)
        term[12:] = curve.rows([value * radix**2 % r], "scalar")
        expected[matrix][row] = (expected[matrix][row] + value * witness[signal]) % r
    factors = curve.rows(witness, "scalar")
    a, b = (cupy.full((constraints, 32), 0xA5, np.uint8) for _ in range(2))
    arguments = (cupy.asarray(terms), np.uint32(count), cupy.asarray(factors), a, b)
    vectors.run("sparse_product", *arguments, np.uint32(constraints), rows=2 * constraints)
    on_cpu = [np.empty((constraints, 32), np.uint8) for _ in range(2)]
    _cpu.sparse_product(curve.name, terms, factors, *on_cpu, 1)
    for out, reference, sums in zip((a, b), on_cpu, expected, strict=True):
        assert curve.standard(cupy.asnumpy(out), "scalar") == sums
        assert np.array_equal(cupy.asnumpy(out), reference)


@pytest.mark.parametrize("width", [2, 5, 13, 16])
def test_digits(curve, vectors, width, rng):
    """They add up to the scalar, or to the order minus it where that is smaller."""
    r = curve.r
    scalars = [0, 1, 2, r - 1, r - 2, r // 2, r // 2 + 1, *(1 << i for i in range(0, 254, 13))]
    scalars += [(1 << i) - 1 for i in range(1, 254, 7)] + [rng.randrange(r) for _ in range(300)]
    scalars = [s % r for s in scalars]
    n, windows = len(scalars), -(-r.bit_length() // width)
    begins = [i * r.bit_length() // windows for i in range(windows + 1)]
    digits = cupy.empty((n, windows), np.int32)
    negated = cupy.empty(n, np.uint32)
    data = cupy.asarray(curve.rows(scalars, "scalar"))
    vectors.run("recode_all", data, np.uint32(n), np.int32(windows), digits, negated, rows=n)
    assert cupy.asnumpy(negated).tolist() == [int(s > r // 2) for s in scalars]
    for scalar, row in zip(scalars, cupy.asnumpy(digits).tolist(), strict=True):
        assert sum(d << begin for d, begin in zip(row, begins[:-1], strict=True)) == min(
            scalar, r - scalar
        )
        for digit, begin, end in zip(row, begins[:-1], begins[1:], strict=True):
            assert -(1 << (end - begin - 1)) < digit <= 1 << (end - begin - 1)
