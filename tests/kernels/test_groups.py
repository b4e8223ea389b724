"""The group laws against py_ecc, in every arithmetic that is compiled."""

import numpy as np
import pytest

from prover.backends.cpu import _cpu


@pytest.fixture
def sample(model, group, rng):
    """Pairs of points that meet every case of the law."""
    ecc = model.ecc
    p, s = (model.multiple(group, rng.randrange(1, model.r)) for _ in range(2))
    pairs = [(p, s), (p, p), (p, ecc.neg(p)), (p, None), (None, p), (None, None)]
    pairs += [(p, ecc.double(p)), (ecc.double(p), p), (ecc.neg(ecc.double(p)), p)]
    pairs += [(p, ecc.neg(ecc.double(p))), (s, ecc.multiply(p, 3))]
    return pairs


def expected_law(ecc, operation):
    return {
        "add": ecc.add,
        "add_mixed": ecc.add,
        # (2 p + s) - 4 p, whose operands have denominators
        "add_projective": lambda p, s: ecc.add(
            ecc.add(ecc.double(p), s), ecc.neg(ecc.multiply(p, 4))
        ),
        "twice": lambda p, _: ecc.double(p),
        "twice_mixed": lambda p, _: ecc.double(p),
    }[operation]


@pytest.mark.parametrize(
    "operation", ["add", "add_mixed", "add_projective", "twice", "twice_mixed"]
)
def test_laws(any_arithmetic, model, group, sample, operation):
    p, s = (model.points(group, list(side)) for side in zip(*sample, strict=True))
    out = np.empty_like(p)
    _cpu._test_operation(any_arithmetic, model.name, f"g{group}", operation, p, s, out)
    safe = _with_infinity(model.ecc)
    law = expected_law(safe, operation)
    assert model.decode(group, out) == [law(a, b) for a, b in sample]


def _with_infinity(ecc):
    """py_ecc's law, whose neg and double take no infinity on one of the curves."""

    class Law:
        add = staticmethod(ecc.add)
        multiply = staticmethod(lambda p, n: None if p is None else ecc.multiply(p, n))
        double = staticmethod(lambda p: None if p is None else ecc.double(p))
        neg = staticmethod(lambda p: None if p is None else ecc.neg(p))

    return Law


def test_bound_operations(arithmetic, model, group, sample, to_rows):
    name, safe = model.name, _with_infinity(model.ecc)
    assert model.decode(group, _cpu.generator(name, group)) == [model.generator(group)]
    for p, s in sample:
        row_p, row_s = (model.points(group, [point]) for point in (p, s))
        assert model.decode(group, _cpu.add(name, group, row_p, row_s)) == [safe.add(p, s)]
        assert model.decode(group, _cpu.negate(name, group, row_p[0])) == [safe.neg(p)]
    p = sample[0][0]
    row = model.points(group, [p])[0]
    for scalar in (0, 1, 2, 3, model.r - 1, model.r, model.r + 1, 2**256 - 1):
        result = _cpu.scale(name, group, row, to_rows([scalar], 32))
        assert result.shape == (model.row_width(group),)
        expected = model.ecc.multiply(p, scalar % model.r) if scalar % model.r else None
        assert model.decode(group, result) == [expected]


@pytest.mark.parametrize("threads", [1, 2])
def test_off_curve_points_are_found(arithmetic, model, group, threads, rng):
    points = [model.multiple(group, rng.randrange(1, model.r)) for _ in range(5)]
    good = np.tile(model.points(group, [*points, None]), (200, 1))
    assert _cpu.find_off_curve(model.name, group, good, threads) == -1
    assert _cpu.find_off_curve(model.name, group, good[:0], threads) == -1
    for bad in (0, 700, len(good) - 1):
        touched = good.copy()
        touched[bad, 0] ^= 1
        assert _cpu.find_off_curve(model.name, group, touched, threads) == bad
        touched[min(bad + 3, len(good) - 1), 0] ^= 2
        assert _cpu.find_off_curve(model.name, group, touched, threads) == bad


@pytest.mark.parametrize("threads", [1, 2])
def test_finite_points_are_marked(model, group, threads):
    """One set bit anywhere in a row is enough."""
    width = model.row_width(group)
    rows = np.zeros((3000, width), np.uint8)
    finite = np.arange(0, len(rows), 3)
    rows[finite, finite % width] = 1 << (finite % 8)
    marks = np.full((len(rows), 1), 7, np.uint8)
    _cpu.mark_finite(model.name, group, rows, marks, threads)
    assert np.array_equal(marks[:, 0], np.isin(np.arange(len(rows)), finite))
    _cpu.mark_finite(model.name, group, rows[:0], marks[:0], threads)


def test_unreduced_coordinates_are_found(model, group):
    """x + q stands for the same coordinate, and is refused all the same."""
    row = model.points(group, [model.generator(group)])
    for start in range(0, row.shape[1], model.width):
        value = int.from_bytes(row[0, start : start + model.width].tobytes(), "little") + model.q
        touched = row.copy()
        touched[0, start : start + model.width] = np.frombuffer(
            value.to_bytes(model.width, "little"), np.uint8
        )
        assert _cpu.find_off_curve(model.name, group, touched) == 0


def curve_point_outside_subgroup(model, group):
    """A point of the curve that r does not annihilate, by trying abscissas."""
    q = model.q
    for x in range(1, 200):
        if group == 1:
            y_squared = (x**3 + int(model.ecc.b)) % q
            y = pow(y_squared, (q + 1) // 4, q)
            if y * y % q != y_squared:
                continue
            point = (model.ecc.FQ(x), model.ecc.FQ(y))
        else:
            abscissa = model.ecc.FQ2([x, 1])
            y2 = square_root(model, abscissa * abscissa * abscissa + model.ecc.b2)
            if y2 is None:
                continue
            point = (abscissa, y2)
        if model.ecc.multiply(point, model.r) is not None:
            return point
    raise AssertionError("every point tried is in the subgroup")


def square_root(model, value):
    """A square root in Fp2 with u^2 = -1 and q = 3 mod 4, or None."""
    q = model.q
    a, b = (int(c) for c in value.coeffs)
    norm = pow(a * a + b * b, (q + 1) // 4, q)
    for sign in (1, -1):
        half = (a + sign * norm) * pow(2, -1, q) % q
        c0 = pow(half, (q + 1) // 4, q)
        if c0 and c0 * c0 % q == half:
            root = model.ecc.FQ2([c0, b * pow(2 * c0, -1, q) % q])
            if root * root == value:
                return root
    return None


@pytest.mark.parametrize("threads", [1, 2])
def test_points_outside_the_subgroup_are_found(arithmetic, model, group, threads, rng):
    points = [model.multiple(group, rng.randrange(1, model.r)) for _ in range(3)]
    good = np.tile(model.points(group, [*points, None]), (10, 1))
    assert _cpu.find_outside_subgroup(model.name, group, good, threads) == -1
    if model.name == "bn128" and group == 1:
        return  # the whole curve is the subgroup
    outside = model.points(group, [curve_point_outside_subgroup(model, group)])
    assert _cpu.find_off_curve(model.name, group, outside) == -1
    for bad in (0, 17, len(good) - 1):
        touched = good.copy()
        touched[bad] = outside
        assert _cpu.find_outside_subgroup(model.name, group, touched, threads) == bad
