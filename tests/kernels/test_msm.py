"""Multi-scalar multiplication.

Points are known multiples of the generator, so that the expected sum is one scalar multiplication.
"""

import numpy as np
import pytest

from prover.backends.cpu import _cpu


def known_points(model, group, count):
    """(k_i, rows of k_i G): consecutive sums, cheap to make."""
    ecc, generator = model.ecc, model.generator(group)
    step = model.multiple(group, 0x1234567)
    points, multiples, point, multiple = [], [], generator, 1
    for _ in range(count):
        points.append(point)
        multiples.append(multiple)
        point, multiple = ecc.add(point, step), multiple + 0x1234567
    return multiples, model.points(group, points)


@pytest.fixture(scope="module")
def cache():
    return {}


@pytest.fixture
def points_of(cache, model, group):
    """known_points, made once for each curve and group."""
    key = (model.name, group)
    if key not in cache:
        cache[key] = known_points(model, group, 300)
    multiples, points = cache[key]

    def pick(n, rng):
        """n of them with repetition, some negated, as (multiples, rows)."""
        chosen = [rng.randrange(len(multiples)) for _ in range(n)]
        return [multiples[i] for i in chosen], points[chosen].reshape(n, -1)

    return pick


def run(model, group, points, scalars, to_rows, threads=2):
    workspace = np.full(_cpu.msm_workspace(model.name, group, len(points), threads), 0xA5, np.uint8)
    data = to_rows(scalars, 32)
    result = _cpu.msm(model.name, group, points, data, workspace, threads)
    assert result.shape == (model.row_width(group),)
    return result


def expected(model, group, multiples, scalars):
    total = sum(k * s for k, s in zip(multiples, scalars, strict=True)) % model.r
    return model.points(group, [model.multiple(group, total) if total else None])[0]


def scalars_of(kind, n, rng, r):
    return {
        "random": lambda: [rng.randrange(r) for _ in range(n)],
        "all zero": lambda: [0] * n,
        "all one": lambda: [1] * n,
        "all minus one": lambda: [r - 1] * n,
        "all equal": lambda: [rng.randrange(r)] * n,
        "bits": lambda: [rng.randrange(2) for _ in range(n)],
        "bytes": lambda: [rng.randrange(256) for _ in range(n)],
        "negative bytes": lambda: [(rng.randrange(256) - 128) % r for _ in range(n)],
        "mixed": lambda: [rng.choice([0, 1, r - 1, 2, rng.randrange(r)]) for _ in range(n)],
        "edges": lambda: [
            rng.choice([r - 1, r - 2, r // 2, r // 2 + 1, r // 2 - 1, 1 << 252, (1 << 252) - 1])
            for _ in range(n)
        ],
    }[kind]()


KINDS = [
    "random",
    "all zero",
    "all one",
    "all minus one",
    "all equal",
    "bits",
    "bytes",
    "negative bytes",
    "mixed",
    "edges",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 17, 1001])
def test_kinds_of_scalars(arithmetic, model, group, kind, n, points_of, rng, to_rows):
    multiples, points = points_of(n, rng)
    scalars = scalars_of(kind, n, rng, model.r)
    result = run(model, group, points, scalars, to_rows)
    assert np.array_equal(result, expected(model, group, multiples, scalars))


def test_no_points(arithmetic, model, group, to_rows):
    empty = np.empty((0, model.row_width(group)), np.uint8)
    assert not run(model, group, empty, [], to_rows).any()


@pytest.mark.parametrize("kind", ["random", "all equal", "all one", "mixed"])
@pytest.mark.parametrize("n", [2, 50, 3000])
def test_equal_and_inverse_points(arithmetic, model, group, kind, n, points_of, rng, to_rows):
    """Every point the same, or the same up to sign: buckets double and cancel."""
    multiples, points = points_of(1, rng)
    negated = _cpu.negate(model.name, group, points).reshape(1, -1)
    signs = [1] * n if n % 3 == 0 else [rng.choice([1, -1]) for _ in range(n)]
    data = np.concatenate([points if sign == 1 else negated for sign in signs])
    scalars = scalars_of(kind, n, rng, model.r)
    result = run(model, group, data, scalars, to_rows)
    signed = [sign * multiples[0] for sign in signs]
    assert np.array_equal(result, expected(model, group, signed, scalars))


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("kind", ["random", "bits"])
def test_infinite_points(arithmetic, model, group, kind, share, points_of, rng, to_rows):
    n = 500
    multiples, points = points_of(n, rng)
    for i in range(n):
        if rng.random() < share:
            points[i], multiples[i] = 0, 0
    scalars = scalars_of(kind, n, rng, model.r)
    result = run(model, group, points, scalars, to_rows)
    assert np.array_equal(result, expected(model, group, multiples, scalars))


@pytest.mark.parametrize("kind", ["random", "bits", "mixed"])
def test_a_mask_leaves_points_out(model, group, kind, points_of, rng, to_rows):
    n = 500
    multiples, points = points_of(n, rng)
    finite = np.array([rng.randrange(2) for _ in range(n)], np.uint8).reshape(-1, 1)
    scalars = scalars_of(kind, n, rng, model.r)
    workspace = np.empty(_cpu.msm_workspace(model.name, group, n, 2), np.uint8)
    total = _cpu.PointSum(model.name, group, points, to_rows(scalars, 32), workspace, finite, 2)
    total.split()
    total.prepare()
    total.add_ones()
    kept = [k if one else 0 for k, one in zip(multiples, finite[:, 0], strict=True)]
    assert np.array_equal(total.add_dense(), expected(model, group, kept, scalars))


def test_phases_have_an_order():
    points, scalars = np.zeros((2, 64), np.uint8), np.zeros((2, 32), np.uint8)
    workspace = np.empty(_cpu.msm_workspace("bn128", 1, 2, 1), np.uint8)
    phases = ("split", "prepare", "add_ones", "add_dense")
    for done in range(5):
        total = _cpu.PointSum("bn128", 1, points, scalars, workspace, None, 1)
        for phase in phases[:done]:
            getattr(total, phase)()
        for phase in phases[:done] + phases[done + 1 :]:
            with pytest.raises(RuntimeError, match="order"):
                getattr(total, phase)()
    with pytest.raises(ValueError, match="finite"):
        _cpu.PointSum("bn128", 1, points, scalars, workspace, np.ones((3, 1), np.uint8), 1)


@pytest.mark.parametrize("kind", ["random", "mixed"])
def test_many_points(arithmetic, model, group, kind, points_of, rng, to_rows):
    """Enough for full batches, queues and several windows of many buckets."""
    n = 20_000
    multiples, points = points_of(n, rng)
    scalars = scalars_of(kind, n, rng, model.r)
    result = run(model, group, points, scalars, to_rows)
    assert np.array_equal(result, expected(model, group, multiples, scalars))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [5, 2049])
def test_threads_and_alignment(model, group, n, threads, points_of, rng, to_rows, unaligned):
    multiples, points = points_of(n, rng)
    scalars = scalars_of("mixed", n, rng, model.r)
    size = _cpu.msm_workspace(model.name, group, n, threads)
    workspace = unaligned(np.zeros(size, np.uint8))
    result = _cpu.msm(
        model.name, group, unaligned(points), unaligned(to_rows(scalars, 32)), workspace, threads
    )
    assert np.array_equal(result, expected(model, group, multiples, scalars))


def test_writes_only_its_workspace(model, group, points_of, rng, to_rows):
    n, guard = 700, 4096
    _, points = points_of(n, rng)
    scalars = to_rows(scalars_of("random", n, rng, model.r), 32)
    size = _cpu.msm_workspace(model.name, group, n, 2)
    room = np.full(size + 2 * guard, 0x5A, np.uint8)
    before_points, before_scalars = points.copy(), scalars.copy()
    _cpu.msm(model.name, group, points, scalars, room[guard : guard + size], 2)
    assert (room[:guard] == 0x5A).all()
    assert (room[guard + size :] == 0x5A).all()
    assert np.array_equal(points, before_points)
    assert np.array_equal(scalars, before_scalars)


def test_scalars_out_of_range_stay_in_memory(model, group, points_of, rng, to_rows):
    """Their sum means nothing, but no digit leaves the buckets."""
    n, guard = 300, 4096
    _, points = points_of(n, rng)
    scalars = to_rows([2**256 - 1 - rng.randrange(1000) for _ in range(n)], 32)
    size = _cpu.msm_workspace(model.name, group, n, 2)
    room = np.full(size + guard, 0x5A, np.uint8)
    _cpu.msm(model.name, group, points, scalars, room[:size], 2)
    assert (room[size:] == 0x5A).all()


def test_workspace_is_small():
    assert _cpu.msm_workspace("bn128", 1, 1 << 18, 2) < 25_000_000
    assert _cpu.msm_workspace("bls12381", 2, 1 << 16, 2) < 25_000_000
