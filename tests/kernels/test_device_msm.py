"""The device's multi-scalar multiplication, every kernel of it, run on the host."""

import emulated
import numpy as np
import pytest

from prover import curves
from prover.backends.cpu import _cpu
from prover.backends.cuda import msm


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    return emulated.build(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def kernels(libraries, model, group):
    return libraries[model.name, group]


def aligned(data: np.ndarray) -> np.ndarray:
    """A copy whose rows can be loaded 16 bytes at a time."""
    room = np.empty(data.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    view = room[start : start + data.nbytes].reshape(data.shape)
    view[...] = data
    return view


def filled(nbytes: int) -> np.ndarray:
    return aligned(np.full(nbytes, 0xA5, np.uint8))


def points_of(model, group, n, rng, kind):
    """Rows of points: 40 multiples of the generator, their negatives, infinity."""
    generator = _cpu.generator(model.name, group)
    scalars = [rng.randrange(1, model.r).to_bytes(32, "little") for _ in range(40)]
    few = [_cpu.scale(model.name, group, generator, np.frombuffer(s, np.uint8)) for s in scalars]
    signed = [*few, *(_cpu.negate(model.name, group, p) for p in few)]
    chosen = {
        "distinct": lambda: few[rng.randrange(40)],
        "one": lambda: few[0],
        "inverse": lambda: signed[rng.choice([0, 40])],
        "infinite": lambda: rng.choice([np.zeros_like(few[0]), signed[rng.randrange(80)]]),
    }[kind]
    return aligned(np.stack([chosen() for _ in range(n)]).reshape(n, -1))


def scalars_of(model, n, rng, kind):
    r = model.r
    equal = rng.randrange(r)
    draw = {
        "random": lambda: rng.randrange(r),
        "zero": lambda: 0,
        "one": lambda: rng.choice([1, r - 1]),
        "equal": lambda: equal,
        "bytes": lambda: rng.randrange(256),
        "mixed": lambda: rng.choice([0, 1, r - 1, rng.randrange(r)]),
        "edges": lambda: rng.choice([r - 1, r - 2, r // 2, r // 2 + 1, r // 2 - 1, 1 << 252, 2]),
    }[kind]
    data = b"".join(draw().to_bytes(32, "little") for _ in range(n))
    return aligned(np.frombuffer(data, np.uint8).reshape(n, 32))


def run(kernels, model, group, points, scalars):
    curve, n = curves.CURVES[model.name], len(points)
    room = filled(msm.sort_workspace(curve, n))
    digits = msm.sort_scalars(kernels, curve, scalars, room)
    space = filled(msm.add_workspace(curve, group, n, kernels))
    result = msm.add_points(kernels, curve, group, points, digits, space)
    return msm.affine(curve, group, kernels.to_host(result))


def on_cpu(model, group, points, scalars):
    size = _cpu.msm_workspace(model.name, group, len(points), 1)
    workspace = np.empty(size, np.uint8)
    return _cpu.msm(model.name, group, points, scalars, workspace, 1).reshape(1, -1)


KINDS = ["random", "zero", "one", "equal", "bytes", "mixed", "edges"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 65])
def test_scalars_of_every_kind(kernels, model, group, kind, n, rng):
    points = points_of(model, group, n, rng, "infinite")
    scalars = scalars_of(model, n, rng, kind)
    result = run(kernels, model, group, points, scalars)
    assert np.array_equal(result, on_cpu(model, group, points, scalars))


@pytest.mark.parametrize("scalars", ["equal", "mixed", "bytes"])
@pytest.mark.parametrize("points", ["distinct", "one", "inverse"])
def test_buckets_of_every_length(kernels, model, group, points, scalars, rng):
    """Buckets that many threads share, and points that meet themselves and their negatives."""
    n = 700 if group == 1 else 150
    rows, factors = points_of(model, group, n, rng, points), scalars_of(model, n, rng, scalars)
    result = run(kernels, model, group, rows, factors)
    assert np.array_equal(result, on_cpu(model, group, rows, factors))
