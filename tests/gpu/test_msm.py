"""Multi-scalar multiplication on the GPU against the CPU backend."""

import cupy
import numpy as np
import pytest
from msm_cases import on_cpu, on_device

from bench import gpu_inputs
from prover.backends.cuda.program import msm_program


@pytest.fixture
def check(curve, group):
    rng = np.random.default_rng(7)
    few = gpu_inputs.few_points(curve.curve, group, rng)

    def run(n, points_kind, scalars_kind):
        points = gpu_inputs.pick_points(few, n, points_kind, rng)
        scalars = gpu_inputs.scalars(curve.curve, n, scalars_kind, rng)
        program = msm_program(curve.curve, group)
        result = on_device(program, cupy.asarray, curve.curve, group, points, scalars)
        assert np.array_equal(result, on_cpu(curve.curve, group, points, scalars))

    return run


@pytest.mark.parametrize("scalars", gpu_inputs.SCALARS)
@pytest.mark.parametrize("points", gpu_inputs.POINTS)
def test_points_and_scalars_of_every_kind(check, points, scalars):
    check(5000, points, scalars)


@pytest.mark.parametrize("n", [0, 1, 2, 31, 33, 1000])
def test_few_points(check, n):
    check(n, "infinite", "random")


@pytest.mark.parametrize("scalars", ["random", "mix 35/35/30"])
def test_many_points(check, group, scalars):
    check(1 << (18 if group == 1 else 15), "infinite", scalars)
