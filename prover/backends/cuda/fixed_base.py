"""Multiples of the generators on a GPU, for keys that are made there."""

import numpy as np

from prover.backends.cpu import _cpu
from prover.backends.cuda.device import Array, Bytes, Device
from prover.curves import SCALAR_BYTES, Curve

_DIGITS = 255
_THREADS = 128


class CudaMultiples:
    """See `prover.setup.Multiples`."""

    piece = 1 << 18

    def __init__(self, device: Device, curve: Curve) -> None:
        self._device = device
        self._curve = curve
        self._tables: dict[int, Array] = {}

    def __call__(self, group: int, scalars: Bytes) -> Bytes:
        """See `prover.setup.Multiples`."""
        n = len(scalars)
        device = self._device
        with device.use():
            out = device.empty((n, self._curve.point_bytes(group)))
            device.program(self._curve, "fixed_base.cu", group).launch(
                "multiply_base",
                -(-n // _THREADS),
                _THREADS,
                *(self._table(group), device.upload(scalars), np.uint32(n), out),
            )
            return device.download(out)

    def _table(self, group: int) -> Array:
        """256^k d times the generator, for k from 0 to 31 and d from 1 to 255."""
        if group not in self._tables:
            digits = np.zeros((SCALAR_BYTES, _DIGITS, SCALAR_BYTES), np.uint8)
            for k in range(SCALAR_BYTES):
                digits[k, :, k] = np.arange(1, _DIGITS + 1)
            scalars = digits.reshape(-1, SCALAR_BYTES)
            table = np.empty((len(scalars), self._curve.point_bytes(group)), np.uint8)
            base = _cpu.generator(self._curve.name, group)
            _cpu.fixed_base(self._curve.name, group, base, scalars, table, 0)
            self._tables[group] = self._device.upload(table)
        return self._tables[group]
