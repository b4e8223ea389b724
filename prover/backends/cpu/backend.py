"""The CPU backend: the native extension behind the contract of `HostBackend`."""

from typing import ClassVar

import numpy as np

import bigmem
from prover.backends.base import PHASES, Bytes, Mask
from prover.backends.cpu import _cpu
from prover.backends.host import HostBackend
from prover.curves import SCALAR_BYTES, Curve


class CpuBackend(HostBackend):
    """Arithmetic on the cores of this machine, with the GIL released.

    Parameters
    ----------
    threads
        0 for every core that the process may run on.
    """

    name: ClassVar[str] = "cpu"

    def __init__(self, threads: int = 0) -> None:
        self.threads = threads

    def products(
        self, curve: Curve, coefficients: Bytes, witness: Bytes, a: Bytes, b: Bytes, c: Bytes
    ) -> None:
        """See `HostBackend`; the indices must have been validated."""
        _cpu.sparse_abc(curve.name, coefficients, witness, a, b, c, self.threads)

    def odd_coset(self, curve: Curve, x: Bytes) -> None:
        """See `HostBackend`."""
        _cpu.odd_coset(curve.name, x, self.threads)

    def quotient(self, curve: Curve, a: Bytes, b: Bytes, c: Bytes, out: Bytes) -> None:
        """See `HostBackend`."""
        _cpu.quotient(curve.name, a, b, c, out, self.threads)

    def msm_workspace(self, curve: Curve, group: int, n: int) -> int:
        """See `HostBackend`."""
        return _cpu.msm_workspace(curve.name, group, n, self.threads)

    def msm(
        self,
        curve: Curve,
        group: int,
        points: Bytes,
        scalars: Bytes,
        workspace: Bytes,
        finite: Mask | None = None,
    ) -> Bytes:
        """See `HostBackend`; its phases are layers."""
        rows = None if finite is None else finite.view(np.uint8).reshape(-1, 1)
        total = _cpu.PointSum(curve.name, group, points, scalars, workspace, rows, self.threads)
        split, prep, ones, tail, _ = PHASES
        with bigmem.layer(split):
            total.split()
        with bigmem.layer(prep):
            total.prepare()
        with bigmem.layer(ones):
            total.add_ones()
        with bigmem.layer(tail):
            return _row(total.add_dense())

    def add(self, curve: Curve, group: int, p: Bytes, q: Bytes) -> Bytes:
        """See `HostBackend`."""
        return _row(_cpu.add(curve.name, group, p, q))

    def scale(self, curve: Curve, group: int, p: Bytes, scalar: int) -> Bytes:
        """See `HostBackend`."""
        encoded = np.frombuffer(scalar.to_bytes(SCALAR_BYTES, "little"), np.uint8)
        return _row(_cpu.scale(curve.name, group, p, encoded.reshape(1, SCALAR_BYTES)))


def _row(point: Bytes) -> Bytes:
    return point.reshape(1, -1)
