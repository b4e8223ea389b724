"""A CUDA backend on an emulated device; a driver without a GPU, and CuPy over it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cupy_stand_in import make_cupy, stand_in_for_cupy
from emulated_device import EmulatedDevice, HostPointSums
from waiting import wait_for

from bigmem import _core
from bigmem.cuda import driver
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


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[_core.FakeCuda]:
    """The driver."""
    fake = _core.FakeCuda()
    gc.collect()
    wait_for(lambda: fake.memory() == 0)
    monkeypatch.setattr(driver, "_addresses", fake.functions)
    monkeypatch.setattr(driver, "_loaded", None)
    monkeypatch.setattr(stand_in_for_cupy, "fake", fake)
    monkeypatch.setattr(stand_in_for_cupy, "pageable_copies", 0)
    monkeypatch.setitem(sys.modules, "cupy", make_cupy())
    yield fake
    _core.FakeCuda()  # whatever the test left undone is done
    stand_in_for_cupy.memory.clear()


@pytest.fixture
def told() -> list[str]:
    return []
