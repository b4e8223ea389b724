"""Transforms as the GPU makes them, pass by pass, on an emulated device."""

import numpy as np
import pytest

from prover.backends.cpu import _cpu
from prover.backends.cuda.transform import (
    HELD_LOG,
    MOST_STAGES,
    TILE_LOG,
    Transform,
    montgomery,
    plan_passes,
)


def naive_transform(values, root, r):
    """Values of the polynomial with these coefficients at the powers of a root of unity."""
    if len(values) == 1:
        return values
    even = naive_transform(values[::2], root * root % r, r)
    odd = naive_transform(values[1::2], root * root % r, r)
    out, power = [0] * len(values), 1
    for i, (e, o) in enumerate(zip(even, odd, strict=True)):
        out[i], out[i + len(even)] = (e + power * o) % r, (e - power * o) % r
        power = power * root % r
    return out


def standard(curve, rows):
    inverse = pow(1 << 256, -1, curve.r)
    return [int.from_bytes(row.tobytes(), "little") * inverse % curve.r for row in rows]


def bit_reversed(values):
    bits = len(values).bit_length() - 1
    return [values[int(f"{i:0{bits}b}"[::-1], 2)] for i in range(len(values))]


@pytest.mark.parametrize("log", range(15))
@pytest.mark.parametrize("batch", [1, 3])
def test_every_length_equals_the_cpu(curve, device, random_scalars, log, batch):
    x = random_scalars((batch, 1 << log))
    out = device.array(x)
    Transform(device, curve).odd_coset(out)
    for vector in x:
        _cpu.odd_coset(curve.name, vector)
    assert np.array_equal(out, x)


@pytest.mark.parametrize("most", range(5, TILE_LOG + 1))
@pytest.mark.parametrize("log", [10, 11, 13])
def test_any_number_of_stages_a_pass(curve, device, random_scalars, log, most):
    x = random_scalars((1 << log,))
    out = device.array(x)
    Transform(device, curve, most).odd_coset(out)
    _cpu.odd_coset(curve.name, x)
    assert np.array_equal(out, x)


@pytest.mark.parametrize("most", [5, MOST_STAGES])
def test_split_and_merge(curve, device, generator, most):
    """Values at the roots of unity to coefficients in bit-reversed order, and back."""
    log = 11
    n, r, transform = 1 << log, curve.r, Transform(device, curve, most)
    coefficients = [int(v) ** 4 % r for v in generator.integers(0, 2**63, n)]
    values = montgomery(curve, naive_transform(coefficients, curve.root_of_unity(n), r))
    x = device.array(values)
    transform.split(x)
    assert standard(curve, x) == [n * c % r for c in bit_reversed(coefficients)]
    x = device.array(montgomery(curve, bit_reversed(coefficients)))
    transform.merge(x)
    assert np.array_equal(x, values)


def test_lengths_in_any_order_share_a_table(curve, device, random_scalars):
    transform = Transform(device, curve)
    for log in (4, 12, 10, 0, 13, 12):
        x = random_scalars((1 << log,))
        out = device.array(x)
        transform.odd_coset(out)
        _cpu.odd_coset(curve.name, x)
        assert np.array_equal(out, x)
    del out
    held = Transform.table_bytes(1 << 13)
    assert held <= device.used < held + 1024
    transform.drop()
    assert device.used == 0


@pytest.mark.parametrize("log", range(TILE_LOG, 32))
@pytest.mark.parametrize("most", range(5, TILE_LOG + 1))
def test_passes_cover_the_stages(log, most):
    plan = plan_passes(log, most)
    begins, lengths = zip(*plan, strict=True)
    assert begins == tuple(int(v) for v in np.cumsum([0, *lengths[:-1]]))
    assert sum(lengths) == log
    assert all(HELD_LOG <= length <= most for length in lengths)
    assert len(plan) == -(-log // most)
