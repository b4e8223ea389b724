"""Sums of scalars times points in device memory, as the backend asks for them."""

from dataclasses import dataclass
from typing import Any, Protocol

import bigmem
from prover.backends.cuda import msm
from prover.backends.cuda.device import Array, Bytes, Device
from prover.backends.cuda.program import Program
from prover.curves import Curve

Sorted = Any
"""Scalars made ready for sums; they stay as long as this object."""


Pending = Any
"""A sum that has been started."""


class PointSums(Protocol):
    """Who adds up points."""

    def workspace(self, curve: Curve, group: int, n: int) -> int:
        """Bytes of device memory that `sort` and then `add` take for ``n`` scalars."""

    def most_scalars(self, curve: Curve) -> int:
        """How many `sort` takes at most, however much memory there is."""

    def sort(self, curve: Curve, scalars: Array) -> Sorted:
        """Make scalars in standard form, shape (n, 32), ready for any number of sums.

        What takes time in it is in layers.
        """

    def add(self, curve: Curve, group: int, points: Array, scalars: Sorted) -> Pending:
        """Start the sum of scalars times points (as in a zkey)."""

    def finish(self, pending: Pending) -> Bytes:
        """Wait for a sum: shape (1, bytes of a point), on the host."""


@dataclass(frozen=True)
class _SortedOnDevice:
    n: int
    scalars: msm.SortedScalars
    workspace: Array


@dataclass(frozen=True)
class _PendingOnDevice:
    curve: Curve
    group: int
    tail: msm.Tail


class DevicePointSums:
    """Sums by the kernels of `prover.backends.cuda.msm`.

    Four threads take a millisecond or two for the last part of a sum. It runs beside whatever
    comes next, which are the other sums of a proof.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        # Planning a sum takes half a millisecond, and every proof has the same ones.
        self._sort_bytes: dict[tuple[str, int], int] = {}
        self._add_bytes: dict[tuple[str, int, int], int] = {}

    def workspace(self, curve: Curve, group: int, n: int) -> int:
        """See `PointSums`."""
        add = self._add_workspace(curve, group, n) + msm.tail_bytes(curve, group)
        return self._sort_workspace(curve, n) + add

    def most_scalars(self, curve: Curve) -> int:
        """See `PointSums`."""
        return msm.most_scalars(curve)

    def sort(self, curve: Curve, scalars: Array) -> _SortedOnDevice:
        """See `PointSums`."""
        n = len(scalars)
        with bigmem.layer("prep MSM"):
            workspace = self._device.empty((self._sort_workspace(curve, n),))
            kernels = self._device.program(curve, "sort.cu")
        return _SortedOnDevice(n, msm.sort_scalars(kernels, curve, scalars, workspace), workspace)

    def add(
        self, curve: Curve, group: int, points: Array, scalars: _SortedOnDevice
    ) -> _PendingOnDevice:
        """See `PointSums`."""
        kernels = self._adding(curve, group)
        room = self._device.empty((msm.tail_bytes(curve, group),))
        workspace = self._device.empty((self._add_workspace(curve, group, scalars.n),))
        given = (points, scalars.scalars, workspace, room)
        tail = msm.add_points(kernels, curve, group, *given)
        with self._device.beside():
            msm.combine(kernels, tail)
        return _PendingOnDevice(curve, group, tail)

    def finish(self, pending: _PendingOnDevice) -> Bytes:
        """See `PointSums`."""
        curve, group = pending.curve, pending.group
        self._device.rejoin()
        return msm.affine(curve, group, self._adding(curve, group).to_host(pending.tail.result))

    def _sort_workspace(self, curve: Curve, n: int) -> int:
        name = (curve.name, n)
        if name not in self._sort_bytes:
            self._sort_bytes[name] = msm.sort_workspace(curve, n)
        return self._sort_bytes[name]

    def _add_workspace(self, curve: Curve, group: int, n: int) -> int:
        name = (curve.name, group, n)
        if name not in self._add_bytes:
            kernels = self._adding(curve, group)
            self._add_bytes[name] = msm.add_workspace(curve, group, n, kernels)
        return self._add_bytes[name]

    def _adding(self, curve: Curve, group: int) -> Program:
        return self._device.program(curve, "msm.cu", group)
