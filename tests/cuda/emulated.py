"""A device whose memory is the host's and whose kernels the host compiler built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from prover.backends.cpu import _cpu
from prover.curves import Curve


class EmulatedDevice:
    """What `prover.backends.cuda.device.Device` offers, with a limit that it keeps to.

    Attributes
    ----------
    peak
        The most bytes of vectors that lived at one time.
    uploaded
        Bytes that `upload` copied.
    """

    def __init__(self, limit: int = 1 << 40) -> None:
        self.limit = limit
        self.peak = 0
        self.uploaded = 0
        self._used = 0

    @contextmanager
    def use(self) -> Iterator[None]:
        yield

    def empty(self, shape: tuple[int, ...], dtype: object = np.uint8) -> np.ndarray:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self._used + nbytes > self.limit:
            raise MemoryError
        return _Tracked.make(self, np.full(nbytes, 0xA5, np.uint8).view(dtype).reshape(shape))

    def array(self, host: np.ndarray) -> np.ndarray:
        out = self.empty(host.shape, host.dtype)
        out[...] = host
        return out

    def upload(
        self, rows: np.ndarray, drop: Callable[[np.ndarray], None] = lambda rows: None
    ) -> np.ndarray:
        self.uploaded += rows.nbytes
        out = self.array(rows)
        drop(rows)
        return out

    def download(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    @property
    def available(self) -> int:
        return self.limit - self._used

    def free_unused(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def launch(
        self, curve: Curve, kernel: str, blocks: int, threads: int, *arguments: object
    ) -> None:
        plain = [int(a) if isinstance(a, np.integer) else a for a in arguments]
        if blocks > 0:
            _cpu._emulate(curve.name, kernel, blocks, threads, plain)

    def count(self, nbytes: int) -> None:
        self._used += nbytes
        self.peak = max(self.peak, self._used)


class _Tracked(np.ndarray):
    """An array that tells its device when it dies; views keep it alive."""

    device: EmulatedDevice | None = None

    @classmethod
    def make(cls, device: EmulatedDevice, data: np.ndarray) -> _Tracked:
        array = data.view(cls)
        array.device = device
        device.count(array.nbytes)
        return array

    def __del__(self) -> None:
        if self.device is not None:
            self.device.count(-self.nbytes)
