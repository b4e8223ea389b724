"""Sums of scalars times points in device memory."""

import numpy as np

from prover.backends.cpu import _cpu
from prover.backends.cuda.device import Array, Bytes, Device
from prover.curves import Curve


class Msm:
    """Multi-scalar multiplication on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def workspace(self, curve: Curve, group: int, n: int) -> int:
        """Bytes of device memory that `run` takes for ``n`` points, beside points and scalars."""
        return 0

    def run(self, curve: Curve, group: int, points: Array, scalars: Array) -> Bytes:
        """Sum of scalars (standard form) times points (as in a zkey), shape (1, bytes of a point).

        The result is in host memory.
        """
        workspace = np.empty(_cpu.msm_workspace(curve.name, group, len(points)), np.uint8)
        p, s = self._device.download(points), self._device.download(scalars)
        return _cpu.msm(curve.name, group, p, s, workspace).reshape(1, -1)
