"""Vectors over the scalar field: products, transforms, the quotient."""

import numpy as np
import pytest

from prover.backends.cpu import _cpu

THREADS = [1, 2, 3]


def root_of_unity(r: int, order: int) -> int:
    """A primitive root of unity; 5 is no square modulo either order."""
    return pow(5, (r - 1) // order, r)


def naive_odd_coset(r: int, values: list[int]) -> list[int]:
    """Interpolate at the N-th roots of unity, evaluate at the odd 2N-th ones."""
    n = len(values)
    omega, omega2 = root_of_unity(r, n), root_of_unity(r, 2 * n)
    assert omega2 * omega2 % r == omega
    inverse_n = pow(n, -1, r)
    coefficients = [
        inverse_n * sum(v * pow(omega, -i * j, r) for j, v in enumerate(values)) % r
        for i in range(n)
    ]
    return [
        sum(c * pow(omega2, (2 * k + 1) * i, r) for i, c in enumerate(coefficients)) % r
        for k in range(n)
    ]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("log", range(7))
def test_odd_coset_of_small_vectors(arithmetic, model, log, threads, rng):
    values = [rng.randrange(model.r) for _ in range(1 << log)]
    x = model.montgomery("scalar", values)
    _cpu.odd_coset(model.name, x, threads)
    assert model.standard("scalar", x) == naive_odd_coset(model.r, values)


@pytest.mark.parametrize("log", [10, 13, 14, 16])
def test_odd_coset_of_polynomials_of_low_degree(arithmetic, model, log, rng):
    """Values of a known polynomial go to values of the same polynomial, at every length."""
    n, r = 1 << log, model.r
    omega, omega2 = root_of_unity(r, n), root_of_unity(r, 2 * n)
    a, b, c = (rng.randrange(r) for _ in range(3))
    degree = rng.randrange(n // 2, n)

    def evaluate(start: int, step: int) -> list[int]:
        power, power_step = pow(start, degree, r), pow(step, degree, r)
        out, point = [], start
        for _ in range(n):
            out.append((a * power + b * point + c) % r)
            power, point = power * power_step % r, point * step % r
        return out

    x = model.montgomery("scalar", evaluate(1, omega))
    _cpu.odd_coset(model.name, x)
    assert model.standard("scalar", x) == evaluate(omega2, omega)


@pytest.mark.parametrize("log", [9, 12, 15])
def test_odd_coset_ignores_threads_arithmetic_and_alignment(model, arithmetic, log, unaligned):
    data = np.random.default_rng(log).integers(0, 2**62, (1 << log, 4), np.uint64)
    x = data.view(np.uint8)  # below r: the top word has 62 bits
    data[:, 3] >>= np.uint64(4)
    reference = x.copy()
    _cpu.odd_coset(model.name, reference, 1)
    for threads in THREADS:
        other = unaligned(x)
        _cpu.odd_coset(model.name, other, threads)
        assert np.array_equal(other, reference)


def random_terms(rng, model, count, constraints, signals, in_order):
    keys = [
        (rng.randrange(2), rng.randrange(constraints), rng.randrange(signals)) for _ in range(count)
    ]
    if in_order:
        keys.sort(key=lambda key: key[1])
    values = [rng.choice([0, 1, model.r - 1, rng.randrange(model.r)]) for _ in keys]
    data = np.empty((count, 44), np.uint8)
    data[:, :12] = np.array(keys, "<u4").reshape(count, 3).view(np.uint8)
    radix = model.radix("scalar")
    for row, value in zip(data, values, strict=True):
        row[12:] = np.frombuffer((value * radix**2 % model.r).to_bytes(32, "little"), np.uint8)
    return keys, values, data


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("in_order", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("count", [0, 1, 700])
def test_sparse_product(arithmetic, model, in_order, count, threads, rng, to_rows, unaligned):
    constraints, signals = 257, 50
    keys, values, data = random_terms(rng, model, count, constraints, signals, in_order)
    witness = [0, 1, 2, model.r - 1] + [rng.randrange(model.r) for _ in range(signals - 4)]
    expected = [[0] * constraints, [0] * constraints]
    for (matrix, constraint, signal), value in zip(keys, values, strict=True):
        expected[matrix][constraint] += value * witness[signal]
    a, b = (unaligned(np.full((constraints, 32), 0xA5, np.uint8)) for _ in range(2))
    _cpu.sparse_product(model.name, unaligned(data), unaligned(to_rows(witness, 32)), a, b, threads)
    for out, sums in zip((a, b), expected, strict=True):
        assert model.standard("scalar", out) == [v % model.r for v in sums]
    again = [unaligned(np.full((constraints, 32), 0x5A, np.uint8)) for _ in range(3)]
    _cpu.sparse_abc(model.name, unaligned(data), unaligned(to_rows(witness, 32)), *again, threads)
    assert np.array_equal(again[:2], [a, b])
    products = [v * w % model.r for v, w in zip(*expected, strict=True)]
    assert model.standard("scalar", again[2]) == products


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("n", [0, 1, 3000])
def test_pointwise_operations(arithmetic, model, n, threads, rng, to_integers, unaligned):
    a, b, c = ([rng.randrange(model.r) for _ in range(n)] for _ in range(3))
    x, y, z = (unaligned(model.montgomery("scalar", v)) for v in (a, b, c))
    out = np.empty_like(x)
    _cpu.multiply(model.name, x, y, out, threads)
    products = [u * v % model.r for u, v in zip(a, b, strict=True)]
    assert model.standard("scalar", out) == products
    _cpu.quotient(model.name, x, y, z, out, threads)
    assert model.standard("scalar", x) == [u % model.r for u in a]
    assert np.array_equal(z, unaligned(model.montgomery("scalar", c)))
    assert to_integers(out) == [(p - w) % model.r for p, w in zip(products, c, strict=True)]
    _cpu.multiply(model.name, y, y, y, threads)
    assert model.standard("scalar", y) == [v * v % model.r for v in b]


@pytest.mark.parametrize("threads", THREADS)
def test_values_not_below_the_order_are_found(arithmetic, model, threads, to_rows):
    data = to_rows([0, 1, model.r - 1] * 2000, 32)
    assert _cpu.find_not_below_order(model.name, data, threads) == -1
    assert _cpu.find_not_below_order(model.name, data[:0], threads) == -1
    for bad in (0, 3123, len(data) - 1):
        for value in (model.r, model.r + 1, 2**256 - 1):
            touched = data.copy()
            touched[bad] = to_rows([value], 32)[0]
            touched[min(bad + 1500, len(data) - 1)] = touched[bad]
            assert _cpu.find_not_below_order(model.name, touched, threads) == bad


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("count", [0, 1, 2047, 2048, 30_001])
def test_rows_are_copied(threads, count, unaligned):
    x = unaligned(np.random.default_rng(count).integers(0, 256, (count, 32), np.uint8))
    out = np.zeros((count + 2, 32), np.uint8)
    _cpu.copy(x, out[1:-1], threads)
    assert np.array_equal(out[1:-1], x)
    assert not out[0].any()
    assert not out[-1].any()


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: _cpu.multiply("bn128", zeros(2, 32), zeros(3, 32), zeros(2, 32)), "y: .*2, 32"),
        (lambda: _cpu.multiply("bn128", zeros(2, 31), zeros(2, 31), zeros(2, 31)), "x: .*n, 32"),
        (lambda: _cpu.multiply("bn128", zeros(64), zeros(64), zeros(64)), "x: .*n, 32"),
        (
            lambda: _cpu.multiply("bn128", zeros(2, 64)[:, ::2], zeros(2, 32), zeros(2, 32)),
            "x: .*contiguous",
        ),
        (
            lambda: _cpu.multiply("bn128", zeros(2, 32).view(np.int8), zeros(2, 32), zeros(2, 32)),
            "x: .*uint8",
        ),
        (
            lambda: _cpu.multiply(
                "bn128", zeros(1, 32), zeros(1, 32), np.frombuffer(bytes(32), np.uint8)
            ),
            "out: .*writable",
        ),
        (lambda: _cpu.copy(zeros(2, 32), zeros(1, 32)), "out: .*2, 32"),
        (lambda: _cpu.odd_coset("bn128", zeros(3, 32)), "power of two"),
        (lambda: _cpu.odd_coset("bn128", zeros(0, 32)), "power of two"),
        (lambda: _cpu.odd_coset("secp256k1", zeros(2, 32)), "secp256k1"),
        (lambda: _cpu.odd_coset("bn128", zeros(2, 32), -1), "threads"),
        (lambda: _cpu.quotient("bn128", *[zeros(2, 32)] * 2, *[zeros(1, 32)] * 2), "c: .*2, 32"),
        (lambda: _cpu.quotient("bn128", *[zeros(2, 32)] * 3, zeros(1, 32)), "out: .*2, 32"),
        (
            lambda: _cpu.sparse_abc(
                "bn128", zeros(1, 44), zeros(1, 32), *[zeros(1, 32)] * 2, zeros(2, 32)
            ),
            "c: .*1, 32",
        ),
        (
            lambda: _cpu.sparse_product(
                "bn128", zeros(1, 43), zeros(1, 32), zeros(1, 32), zeros(1, 32)
            ),
            "coefficients: .*n, 44",
        ),
        (
            lambda: _cpu.sparse_product(
                "bn128", zeros(1, 44), zeros(1, 32), zeros(1, 32), zeros(2, 32)
            ),
            "b: .*1, 32",
        ),
        (lambda: _cpu.to_montgomery("bls12381", "base", zeros(1, 32), zeros(1, 32)), "x: .*n, 48"),
        (lambda: _cpu.to_montgomery("bn128", "ring", zeros(1, 32), zeros(1, 32)), "field"),
        (lambda: _cpu.find_off_curve("bn128", 3, zeros(1, 64)), "group"),
        (lambda: _cpu.find_off_curve("bn128", 2, zeros(1, 64)), "points: .*n, 128"),
        (lambda: _cpu.mark_finite("bn128", 1, zeros(2, 64), zeros(1, 1)), "out: .*2, 1"),
        (lambda: _cpu.add("bn128", 1, zeros(64), zeros(63)), r"q: .*\(64,\)"),
        (lambda: _cpu.scale("bn128", 1, zeros(64), zeros(31)), r"scalar: .*\(32,\)"),
        (
            lambda: _cpu.msm("bn128", 1, zeros(2, 64), zeros(1, 32), zeros(1 << 20)),
            "scalars: .*2, 32",
        ),
        (lambda: _cpu.msm("bn128", 1, zeros(2, 64), zeros(2, 32), zeros(8)), "workspace"),
    ],
)
def test_wrong_arguments_are_refused(call, problem):
    with pytest.raises(ValueError, match=problem):
        call()


def test_read_only_inputs_are_taken(model):
    x = model.montgomery("scalar", [3, 4])
    x.setflags(write=False)
    out = np.empty_like(x)
    _cpu.multiply(model.name, x, x, out)
    assert model.standard("scalar", out) == [9, 16]
