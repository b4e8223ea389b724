"""Keys whose points the device's kernels make, run on the host: the bytes of the CPU's keys."""

import io

import numpy as np
import pytest
from emulated_device import WholeDevice

from prover.backends.cuda.fixed_base import CudaMultiples
from prover.curves import CURVES
from prover.formats.r1cs import R1cs
from prover.setup import CpuMultiples, Trapdoor, write_key


@pytest.fixture
def both(model, libraries):
    curve = CURVES[model.name]
    return CpuMultiples(curve), CudaMultiples(WholeDevice(libraries), curve)


def test_multiples_equal_the_cpus(both, model, group, to_rows):
    r = model.r
    values = [0, 1, 2, 255, 256, 257, r - 1, r // 2, 1 << 248, (1 << 253) - 1 - (255 << 96)]
    values += [pow(3, 1000 + i, r) for i in range(120)]
    scalars = to_rows([value % r for value in values], 32)
    ours, theirs = (multiples(group, scalars) for multiples in both)
    assert np.array_equal(ours, theirs)


def test_keys_equal_the_cpus(multiplier, libraries):
    circuit = R1cs.open(multiplier.r1cs)
    trapdoor = Trapdoor(tau=7**70, alpha=5**80, beta=3**120, delta=2**249 - 9)
    on_device = CudaMultiples(WholeDevice(libraries), circuit.curve)
    on_device.piece = 3
    keys = []
    for multiples in (None, on_device):
        file = io.BytesIO()
        write_key(file, circuit, trapdoor, multiples=multiples)
        keys.append(file.getvalue())
    assert keys[0] == keys[1]
