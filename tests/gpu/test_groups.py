"""Group laws and a small multi-scalar multiplication on the GPU, both groups of both curves."""

import itertools

import cupy
import numpy as np
import pytest

from prover.backends.cpu import _cpu

COORDINATES = {1: "using F = Curve::Fq;\n", 2: "using F = Curve::Fq2;\n"}


@pytest.fixture
def laws(program, group):
    return program("groups.cu", COORDINATES[group])


@pytest.fixture
def sample(curve, group, rng, multiply_point):
    """Points p and q: generic, equal, inverse, and infinity on either side or both."""
    points = [multiply_point(curve.generator(group), rng.randrange(1, curve.r)) for _ in range(12)]
    generic = list(itertools.pairwise(points))
    doubled = [(p, p) for p in points]
    inverse = [(p, (p[0], -p[1])) for p in points]
    infinite = [(None, points[0]), (points[0], None), (None, None)]
    return generic + doubled + inverse + infinite


def split(sample):
    return [p for p, _ in sample], [q for _, q in sample]


def run_law(curve, group, laws, name, *operands):
    """The points that a kernel makes of rows on the host."""
    n = len(operands[0])
    out = cupy.empty((n, 2 * curve.curve.point_bytes(group)), np.uint8)
    laws.run(name, *map(cupy.asarray, operands), out, np.uint32(n), rows=n)
    return curve.points_of_xyzz(group, cupy.asnumpy(out))


def on_cpu(curve, group, operation, left, right):
    p, q = curve.affine_rows(group, left), curve.affine_rows(group, right)
    out = np.empty_like(p)
    _cpu._test_operation("portable", curve.name, f"g{group}", operation, p, q, out)
    return curve.points_of_affine(group, out)


@pytest.mark.parametrize("name", ["add_mixed", "add"])
def test_addition(curve, group, laws, sample, name, rng, add_points):
    left, right = split(sample)
    mixed = name == "add_mixed"
    p = curve.xyzz_rows(group, left, rng)
    q = curve.affine_rows(group, right) if mixed else curve.xyzz_rows(group, right, rng)
    result = run_law(curve, group, laws, name, p, q)
    assert result == [add_points(a, b) for a, b in sample]
    assert result == on_cpu(curve, group, name, left, right)


def test_doubling(curve, group, laws, sample, rng, add_points):
    points = split(sample)[0]
    expected = [add_points(p, p) for p in points]
    affine = curve.affine_rows(group, points)
    assert run_law(curve, group, laws, "twice_mixed", affine) == expected
    projective = curve.xyzz_rows(group, points, rng)
    assert run_law(curve, group, laws, "twice", projective) == expected
    assert on_cpu(curve, group, "twice", points, points) == expected


def test_to_affine(curve, group, laws, sample, rng):
    points = split(sample)[1]
    n = len(points)
    out = cupy.empty((n, curve.curve.point_bytes(group)), np.uint8)
    p = cupy.asarray(curve.xyzz_rows(group, points, rng))
    laws.run("to_affine", p, out, np.uint32(n), rows=n)
    assert np.array_equal(cupy.asnumpy(out), curve.affine_rows(group, points))


def test_scalar_multiplication(curve, group, laws, rng, multiply_point):
    scalars = [0, 1, 2, 3, curve.r - 1, curve.r, 2**256 - 1, rng.randrange(curve.r)]
    points = [curve.generator(group)] * len(scalars) + [None]
    scalars.append(5)
    affine = curve.affine_rows(group, points)
    result = run_law(curve, group, laws, "scale", affine, curve.rows(scalars, "scalar"))
    pairs = list(zip(points, scalars, strict=True))
    assert result == [multiply_point(p, k % curve.r) for p, k in pairs]
    assert result[:6] == curve.points_of_affine(
        group,
        np.stack(
            [
                _cpu.scale(curve.name, group, row, scalar)
                for row, scalar in zip(affine[:6], curve.rows(scalars[:6], "scalar"), strict=True)
            ]
        ),
    )


def test_points_off_the_curve_are_told(curve, group, laws, sample):
    on = [p for p in split(sample)[0] if p is not None]
    off = [(x, y + curve.element(group, 1)) for x, y in on] + [(y, x) for x, y in on]
    data = cupy.asarray(curve.affine_rows(group, on + off))
    out = cupy.empty(len(on + off), np.uint32)
    laws.run("on_curve", data, out, np.uint32(len(out)), rows=len(out))
    assert cupy.asnumpy(out).tolist() == [1] * len(on) + [0] * len(off)


@pytest.mark.parametrize("width", [3, 8])
def test_multi_scalar_multiplication(curve, group, laws, width, rng, add_points, multiply_point):
    """Digits, buckets and their weighted sums: equal, inverse and infinite points among them."""
    n, r = 150, curve.r
    few = [multiply_point(curve.generator(group), rng.randrange(1, r)) for _ in range(7)]
    points = [rng.choice([*few, *((x, -y) for x, y in few), None]) for _ in range(n)]
    edges = [0, 1, r - 1, r // 2, r // 2 + 1, 2, r - 2]
    scalars = [rng.choice([*edges, *(rng.randrange(r) for _ in range(20))]) for _ in range(n)]
    rows, factors = curve.affine_rows(group, points), curve.rows(scalars, "scalar")
    windows = -(-r.bit_length() // width)
    buckets = 1 << (-(-r.bit_length() // windows) - 1)
    xyzz = 2 * curve.curve.point_bytes(group)
    room, sums = (cupy.empty((count, xyzz), np.uint8) for count in (windows * buckets, windows))
    out = cupy.empty((1, xyzz), np.uint8)
    count = np.int32(windows)
    arguments = (cupy.asarray(rows), cupy.asarray(factors), np.uint32(n), count, room, sums)
    laws.run("window_sums", *arguments, threads=windows)
    laws.run("combine", sums, count, out, threads=1)
    result = curve.points_of_xyzz(group, cupy.asnumpy(out))
    workspace = np.empty(_cpu.msm_workspace(curve.name, group, n, 1), np.uint8)
    reference = _cpu.msm(curve.name, group, rows, factors, workspace, 1)
    assert result == curve.points_of_affine(group, reference.reshape(1, -1))
    total = None
    for p, k in zip(points, scalars, strict=True):
        total = add_points(total, multiply_point(p, k))
    assert result == [total]
