"""A device whose memory is the host's and whose kernels the host compiler built."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from emulated import EmulatedKernels

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
    refusals
        How many allocations from now on fail, whatever their size.
    taken
        Bytes that others hold.
    read
        The addresses of the arrays of which `was_read` was told.
    """

    def __init__(self, limit: int = 1 << 40) -> None:
        self.limit = limit
        self.refusals = 0
        self.taken = 0
        self.read: list[int] = []
        self.peak = 0
        self.uploaded = 0
        self._used = 0

    @contextmanager
    def use(self) -> Iterator[None]:
        yield

    def empty(self, shape: tuple[int, ...], dtype: object = np.uint8) -> np.ndarray:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if self.refusals > 0 or self._used + nbytes > self.reach:
            self.refusals = max(0, self.refusals - 1)
            raise MemoryError
        return _Tracked.make(self, np.full(nbytes, 0xA5, np.uint8).view(dtype).reshape(shape))

    def array(self, host: np.ndarray) -> np.ndarray:
        out = self.empty(host.shape, host.dtype)
        out[...] = host
        return out

    def upload(
        self,
        rows: np.ndarray,
        out: np.ndarray | None = None,
        drop: Callable[[np.ndarray], None] = lambda rows: None,
    ) -> np.ndarray:
        self.uploaded += rows.nbytes
        out = self.empty(rows.shape, rows.dtype) if out is None else out
        out[...] = rows
        drop(rows)
        return out

    def download(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def was_read(self, *arrays: np.ndarray) -> None:
        self.read += [array.ctypes.data for array in arrays]

    @property
    def reach(self) -> int:
        return self.limit - self.taken

    @property
    def available(self) -> int:
        return self.reach - self._used

    def free_unused(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record(self) -> float:
        return time.monotonic()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    @contextmanager
    def beside(self) -> Iterator[None]:
        yield

    @contextmanager
    def ahead(self) -> Iterator[None]:
        yield

    def rejoin(self) -> None:
        pass

    def release_uploads(self) -> None:
        pass

    def prepare(self, curve: Curve) -> None:
        pass

    def launch(
        self, curve: Curve, kernel: str, blocks: int, threads: int, *arguments: object
    ) -> None:
        plain = [int(a) if isinstance(a, np.integer) else a for a in arguments]
        if blocks > 0:
            _cpu._emulate(curve.name, kernel, blocks, threads, plain)

    @property
    def used(self) -> int:
        return self._used

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


class HostPointSums:
    """Sums by the CPU, with a workspace on the device all the same."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.device = device

    def workspace(self, curve: Curve, group: int, n: int) -> int:
        return 20 * n + 1000 * group

    def most_scalars(self, curve: Curve) -> int:
        return 1 << 32

    def sort(self, curve: Curve, scalars: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scalars, self.device.empty((20 * len(scalars),))

    def add(
        self, curve: Curve, group: int, points: np.ndarray, scalars: tuple[np.ndarray, np.ndarray]
    ) -> np.ndarray:
        buckets = self.device.empty((1000 * group,))
        space = np.empty(_cpu.msm_workspace(curve.name, group, len(points)), np.uint8)
        given = (np.array(points), np.array(scalars[0]))
        del buckets
        return _cpu.msm(curve.name, group, *given, space).reshape(1, -1)

    def finish(self, pending: np.ndarray) -> np.ndarray:
        return pending


class WholeDevice(EmulatedDevice):
    """With the kernels that work on points, too."""

    def __init__(
        self, libraries: dict[tuple[str, int], EmulatedKernels], limit: int = 1 << 40
    ) -> None:
        super().__init__(limit)
        self._libraries = libraries

    def program(self, curve: Curve, file: str, group: int | None = None) -> EmulatedKernels:
        return self._libraries[curve.name, group or 1]
