"""Sums of scalars times points in device memory, as the backend asks for them."""

from dataclasses import dataclass
from typing import Any, Protocol

from prover.backends.cuda import msm
from prover.backends.cuda.device import Array, Bytes, Device
from prover.backends.cuda.program import Program
from prover.curves import Curve

Sorted = Any
"""Scalars made ready for sums; they stay as long as this object."""


class PointSums(Protocol):
    """Who adds up points."""

    def workspace(self, curve: Curve, group: int, n: int) -> int:
        """Bytes of device memory that `sort` and then `add` take for ``n`` scalars."""

    def sort(self, curve: Curve, scalars: Array) -> Sorted:
        """Make scalars in standard form, shape (n, 32), ready for any number of sums."""

    def add(self, curve: Curve, group: int, points: Array, scalars: Sorted) -> Bytes:
        """Sum of scalars times points (as in a zkey), shape (1, bytes of a point), on the host."""


@dataclass(frozen=True)
class _SortedOnDevice:
    n: int
    scalars: msm.SortedScalars
    workspace: Array


class DevicePointSums:
    """Sums by the kernels of `prover.backends.cuda.msm`."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def workspace(self, curve: Curve, group: int, n: int) -> int:
        """See `PointSums`."""
        kernels = self._adding(curve, group)
        return msm.sort_workspace(curve, n) + msm.add_workspace(curve, group, n, kernels)

    def sort(self, curve: Curve, scalars: Array) -> _SortedOnDevice:
        """See `PointSums`."""
        n = len(scalars)
        workspace = self._device.empty((msm.sort_workspace(curve, n),))
        kernels = self._device.program(curve, "sort.cu")
        return _SortedOnDevice(n, msm.sort_scalars(kernels, curve, scalars, workspace), workspace)

    def add(self, curve: Curve, group: int, points: Array, scalars: _SortedOnDevice) -> Bytes:
        """See `PointSums`."""
        kernels = self._adding(curve, group)
        size = msm.add_workspace(curve, group, scalars.n, kernels)
        workspace = self._device.empty((size,))
        total = msm.add_points(kernels, curve, group, points, scalars.scalars, workspace)
        return msm.affine(curve, group, kernels.to_host(total))

    def _adding(self, curve: Curve, group: int) -> Program:
        return self._device.program(curve, "msm.cu", group)
