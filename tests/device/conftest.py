"""A CUDA backend on an emulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulated_device import EmulatedDevice, HostPointSums

from prover.backends.cuda.backend import CudaBackend
from prover.curves import CURVES, Curve
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey


@pytest.fixture
def opened(circuit: Any) -> tuple[ProvingKey, Witness]:
    return ProvingKey.open(circuit.key), Witness.open(circuit.witness)


@pytest.fixture
def large(multiplier: Any) -> tuple[ProvingKey, Witness]:
    """The largest fixture of each curve."""
    folder = multiplier.folder.parent / "manypub"
    return ProvingKey.open(folder / "circuit.zkey"), Witness.open(folder / "witness.wtns")


@pytest.fixture
def make_backend() -> Callable[[EmulatedDevice], CudaBackend]:
    return lambda device: CudaBackend(device, HostPointSums(device))


@pytest.fixture
def make_device() -> type[EmulatedDevice]:
    return EmulatedDevice


@pytest.fixture
def device() -> EmulatedDevice:
    return EmulatedDevice()


@pytest.fixture(params=list(CURVES))
def curve(request: pytest.FixtureRequest) -> Curve:
    return CURVES[request.param]


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(20260101)


@pytest.fixture
def random_scalars(
    generator: np.random.Generator, curve: Curve
) -> Callable[[tuple[int, ...]], np.ndarray]:
    """Uniform rows of 252 bits, which is below both orders."""

    def make(shape: tuple[int, ...]) -> np.ndarray:
        data = generator.integers(0, 256, (*shape, 32), np.uint8)
        data[..., 31] &= 0x0F
        return data

    return make
