"""The setup's native parts: multiples of one point, Lagrange bases, weighted sums."""

import random

import numpy as np
import pytest

from prover.backends.cpu import _cpu
from prover.curves import CURVES, Curve


def rows(values: list[int]) -> np.ndarray:
    data = b"".join(value.to_bytes(32, "little") for value in values)
    return np.frombuffer(data, np.uint8).reshape(-1, 32).copy()


def numbers(array: np.ndarray) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in array]


def awkward(curve: Curve, count: int) -> list[int]:
    """Scalars at the borders of every window width, then random ones."""
    borders = [0, 1, 2, curve.r - 1, curve.r - 2, curve.r // 2]
    borders += [(1 << k) + d for k in range(1, 250, 7) for d in (-1, 0, 1)]
    source = random.Random(count)
    return (borders + [source.randrange(curve.r) for _ in range(count)])[:count]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(("count", "threads"), [(1, 1), (7, 3), (400, 2), (3000, 0)])
def test_fixed_base_agrees_with_scale(
    curve_name: str, group: int, count: int, threads: int
) -> None:
    curve = CURVES[curve_name]
    scalars = rows(awkward(curve, count))
    base = _cpu.scale(
        curve_name, group, _cpu.generator(curve_name, group).reshape(1, -1), rows([12345])
    ).reshape(1, -1)
    out = np.empty((count, curve.point_bytes(group)), np.uint8)
    _cpu.fixed_base(curve_name, group, base, scalars, out, threads)
    for i in {*range(min(count, 120)), *range(0, count, 97), count - 1}:
        single = _cpu.scale(curve_name, group, base, scalars[i : i + 1])
        assert np.array_equal(out[i], single.reshape(-1)), f"scalar {i}"


def test_multiples_of_infinity_are_infinite(curve_name: str) -> None:
    size = CURVES[curve_name].point_bytes(1)
    out = np.ones((3, size), np.uint8)
    _cpu.fixed_base(curve_name, 1, np.zeros((1, size), np.uint8), rows([1, 2, 3]), out)
    assert not out.any()


@pytest.mark.parametrize(
    ("order", "first", "step"), [(1, 0, 1), (8, 0, 1), (16, 1, 2), (1024, 3, 1)]
)
def test_lagrange_basis_is_its_geometric_sum(
    curve_name: str, order: int, first: int, step: int
) -> None:
    # L_k(x) = 1/n sum_j (x / omega^k)^j: a geometric sum that is 1 at omega^k, 0 at the others.
    curve = CURVES[curve_name]
    r, tau, scale = curve.r, 987654321987654321, 5
    omega = curve.root_of_unity(order)
    count = len(range(first, order, step))
    out = np.empty((count, 32), np.uint8)
    _cpu.lagrange(curve_name, rows([omega]), order, first, step, rows([tau]), rows([scale]), out, 2)
    back = pow(1 << 256, -1, r)
    for i, k in list(enumerate(range(first, order, step)))[:: 1 + count // 20]:
        node = pow(omega, k, r)
        powers = (pow(tau * pow(node, -1, r), j, r) for j in range(order))
        expected = scale * sum(powers) * pow(order, -1, r) % r
        assert numbers(out[i : i + 1])[0] * back % r == expected


def test_weighted_sum(curve_name: str) -> None:
    r = CURVES[curve_name].r
    source = random.Random(1)
    weights = [source.randrange(r) for _ in range(3)]
    columns = [[source.randrange(r) for _ in range(1000)] for _ in range(3)]
    out = np.empty((1000, 32), np.uint8)
    _cpu.weighted_sum(curve_name, rows(weights), *(rows(column) for column in columns), out, 2)
    expected = [
        sum(w * x for w, x in zip(weights, row, strict=True)) % r
        for row in zip(*columns, strict=True)
    ]
    assert numbers(out) == expected


def test_columns_add_up(curve_name: str) -> None:
    r = CURVES[curve_name].r
    source = random.Random(2)
    weights = [source.randrange(r) for _ in range(5)]
    terms = [
        (source.randrange(3), source.randrange(5), source.randrange(4), source.randrange(r))
        for _ in range(200)
    ]
    expected = [[7] * 4 for _ in range(3)]
    for matrix, row, wire, value in terms:
        expected[matrix][wire] = (expected[matrix][wire] + value * weights[row]) % r
    columns = np.repeat(rows([7]), 12, axis=0).reshape(3, 4, 32)
    matrix, row, wire, value = zip(*terms, strict=True)
    _cpu.add_to_columns(
        curve_name,
        np.array(matrix, np.uint8),
        np.array(row, np.uint32),
        np.array(wire, np.uint32),
        rows(list(value)),
        rows([weight * 2**256 % r for weight in weights]),
        columns,
    )
    assert [numbers(column) for column in columns] == expected


def test_shapes_are_checked(curve_name: str) -> None:
    base = _cpu.generator(curve_name, 1).reshape(1, -1)
    out = np.empty((2, base.shape[1]), np.uint8)
    for bad in (
        lambda: _cpu.fixed_base(curve_name, 2, base, rows([1, 2]), out),
        lambda: _cpu.fixed_base(curve_name, 1, base, rows([1]), out),
        lambda: _cpu.fixed_base(curve_name, 3, base, rows([1, 2]), out),
        lambda: _cpu.fixed_base("bn254", 1, base, rows([1, 2]), out),
        lambda: _cpu.lagrange(
            curve_name, rows([1]), 3, 0, 1, rows([2]), rows([1]), np.empty((3, 32), np.uint8)
        ),
        lambda: _cpu.weighted_sum(
            curve_name, rows([1, 2]), rows([1]), rows([1]), rows([1]), np.empty((1, 32), np.uint8)
        ),
    ):
        with pytest.raises(ValueError):
            bad()
