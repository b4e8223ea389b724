"""A plain Python model of both curves, and the bytes that the native code reads and writes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import emulated
import numpy as np
import pytest
from py_ecc import bls12_381, bn128

from prover.backends.cpu import _cpu


@dataclass(frozen=True)
class Model:
    """One curve: integers in, rows of bytes out. Points are py_ecc's affine pairs or None."""

    name: str
    ecc: Any
    width: int  # bytes of a coordinate

    @property
    def q(self) -> int:
        return int(self.ecc.field_modulus)

    @property
    def r(self) -> int:
        return int(self.ecc.curve_order)

    def modulus(self, field: str) -> int:
        return self.r if field == "scalar" else self.q

    def field_width(self, field: str) -> int:
        return 32 if field == "scalar" else self.width

    def radix(self, field: str) -> int:
        return 1 << (8 * self.field_width(field))

    def montgomery(self, field: str, values: list[int]) -> np.ndarray:
        """Rows that hold ``values`` in Montgomery form."""
        modulus, radix = self.modulus(field), self.radix(field)
        return rows([v * radix % modulus for v in values], self.field_width(field))

    def standard(self, field: str, data: np.ndarray) -> list[int]:
        """The values of rows in Montgomery form."""
        modulus = self.modulus(field)
        inverse = pow(self.radix(field), -1, modulus)
        return [v * inverse % modulus for v in integers(data)]

    def points(self, group: int, points: list[Any]) -> np.ndarray:
        """Rows that hold affine points (None is infinity)."""
        coordinates = 2 * group
        flat: list[int] = []
        for point in points:
            if point is None:
                flat += [0] * coordinates
            elif group == 1:
                flat += [int(c) for c in point]
            else:
                flat += [int(c) for coordinate in point for c in coordinate.coeffs]
        data = self.montgomery("base", flat)
        return data.reshape(len(points), coordinates * self.width)

    def decode(self, group: int, data: np.ndarray) -> list[Any]:
        values = self.standard("base", data.reshape(-1, self.width))
        count = 2 * group
        return [self._point(group, values[i : i + count]) for i in range(0, len(values), count)]

    def _point(self, group: int, values: list[int]) -> Any:
        if not any(values):
            return None
        if group == 1:
            return tuple(self.ecc.FQ(v) for v in values)
        return (self.ecc.FQ2(values[:2]), self.ecc.FQ2(values[2:]))

    def generator(self, group: int) -> Any:
        return self.ecc.G1 if group == 1 else self.ecc.G2

    def multiple(self, group: int, scalar: int) -> Any:
        return self.ecc.multiply(self.generator(group), scalar % self.r)

    def row_width(self, group: int) -> int:
        return 2 * group * self.width


def rows(values: list[int], width: int) -> np.ndarray:
    data = b"".join(v.to_bytes(width, "little") for v in values)
    return np.frombuffer(data, np.uint8).reshape(len(values), width).copy()


def integers(data: np.ndarray) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in data]


MODELS = {
    "bn128": Model("bn128", bn128, 32),
    "bls12381": Model("bls12381", bls12_381, 48),
}


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]


@pytest.fixture(params=[1, 2], ids=["g1", "g2"])
def group(request: pytest.FixtureRequest) -> int:
    return request.param


def has_adx() -> bool:
    with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as info:
        flags = next((line for line in info if line.startswith("flags")), "").split()
    return "bmi2" in flags and "adx" in flags


@pytest.fixture(scope="session")
def libraries(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[tuple[str, int], emulated.EmulatedKernels]:
    """The device's kernels of each curve and group, built for the host."""
    return emulated.build(tmp_path_factory.mktemp("emulated"))


HOST_ARITHMETICS = ["portable", "adx"]


@pytest.fixture(params=[*HOST_ARITHMETICS, "portable32", "ptx"])
def any_arithmetic(request: pytest.FixtureRequest) -> str:
    """Every arithmetic there is, the one of the device included."""
    if request.param == "adx" and not has_adx():
        pytest.skip("this CPU has no BMI2 and ADX")
    return request.param


@pytest.fixture(params=HOST_ARITHMETICS)
def arithmetic(request: pytest.FixtureRequest) -> Iterator[str]:
    """Makes the backend use one arithmetic."""
    if request.param == "adx" and not has_adx():
        pytest.skip("this CPU has no BMI2 and ADX")
    before = _cpu.arithmetic()
    _cpu._use_arithmetic(request.param)
    yield request.param
    _cpu._use_arithmetic(before)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20260101)


@pytest.fixture
def to_rows() -> Callable[[list[int], int], np.ndarray]:
    return rows


@pytest.fixture
def to_integers() -> Callable[[np.ndarray], list[int]]:
    return integers


@pytest.fixture
def unaligned() -> Callable[[np.ndarray], np.ndarray]:
    """A copy of an array at an odd address."""

    def copy(data: np.ndarray) -> np.ndarray:
        room = np.empty(data.nbytes + 2, np.uint8)
        start = 1 if room.ctypes.data % 2 == 0 else 2
        view = room[start : start + data.nbytes].reshape(data.shape)
        view[...] = data
        assert data.size == 0 or view.ctypes.data % 2 == 1
        return view

    return copy
