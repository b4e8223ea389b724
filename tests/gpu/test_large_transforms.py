"""Transforms so long that byte offsets do not fit into 32 bits, beside Python's integers."""

import pytest

from bench.gpu_checks import wrong_transforms
from prover.backends.cuda.device import Device


@pytest.fixture
def device():
    device = Device()
    with device.use():
        yield device
    device.free_unused()


@pytest.mark.parametrize("log", [21, 26, 27])
def test_values_of_known_polynomials(curve, device, log):
    """BN254 has roots of unity for no more than a change of coset of 2^27 elements."""
    assert wrong_transforms(device, curve.curve, log) == []
