"""Sums of scalars times points in device memory, as the backend asks for them."""

from typing import Any, Protocol

from prover.backends.cuda.device import Array, Bytes, Device
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


class DevicePointSums:
    """Sums by the device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def workspace(self, curve: Curve, group: int, n: int) -> int:
        """See `PointSums`."""
        raise NotImplementedError

    def sort(self, curve: Curve, scalars: Array) -> Sorted:
        """See `PointSums`."""
        raise NotImplementedError

    def add(self, curve: Curve, group: int, points: Array, scalars: Sorted) -> Bytes:
        """See `PointSums`."""
        raise NotImplementedError
