"""One GPU through CuPy: memory, copies, kernels and when they are compiled."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from prover.backends.cuda.program import HERE, Program, compiled
from prover.curves import Curve
from prover.errors import UnavailableBackend

Array = Any
"""An array in device memory: a ``cupy.ndarray``."""

Bytes = NDArray[np.uint8]
Notify = Callable[[str], None]

_PIECE_BYTES = 64 << 20
_SHARE = 0.95
"""How much of the memory that is free at first is taken, unless a limit is given."""


class Device:
    """Memory of its own CuPy pool, a stream, and the kernels of both curves.

    All that computes must happen inside `use`. Whatever does not fit raises MemoryError, after
    which the device works as before.

    Parameters
    ----------
    limit
        Bytes of device memory at most; None for nearly all that is free now.
    notify
        Told in a line when kernels had to be compiled, which takes seconds once a machine.

    Raises
    ------
    UnavailableBackend
        Without CuPy or a GPU that works.
    """

    def __init__(self, limit: int | None = None, notify: Notify | None = None) -> None:
        try:
            import cupy
        except ImportError as error:
            raise UnavailableBackend(
                f"the cuda backend needs CuPy ({_first_line(error)}); install bigmem[cuda12] or "
                "bigmem[cuda13], or use --backend cpu"
            ) from None
        try:
            self._device = cupy.cuda.Device()
            free, total = self._device.mem_info
            self._stream = cupy.cuda.Stream(non_blocking=True)
        except RuntimeError as error:  # CuPy's own errors are such
            raise UnavailableBackend(
                f"the cuda backend finds no usable NVIDIA GPU ({_first_line(error)}); "
                "use --backend cpu"
            ) from None
        self._cupy = cupy
        self._notify = notify
        self._pool = cupy.cuda.MemoryPool()
        self.limit = min(limit or int(free * _SHARE), total)
        self._pool.set_limit(size=self.limit)
        self._programs: dict[tuple[str, str, int | None], Program] = {}

    @contextmanager
    def use(self) -> Iterator[None]:
        """Allocate from the device's pool and run on its stream."""
        with self._device, self._cupy.cuda.using_allocator(self._pool.malloc), self._stream:
            yield

    # Memory

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike = np.uint8) -> Array:
        """An array of unspecified content."""
        return self._cupy.empty(shape, dtype)

    def array(self, host: NDArray[Any]) -> Array:
        """A copy of a small array of the host."""
        return self._cupy.asarray(host)

    def upload(
        self,
        rows: NDArray[Any],
        out: Array | None = None,
        drop: Callable[[Bytes], None] = lambda rows: None,
    ) -> Array:
        """A copy, in ``out`` or new, of an array that may lie in a mapped file.

        ``drop`` is told of each piece that was copied. All that is large comes this way: from
        pageable memory, piece by piece, without a copy in pinned memory.
        """
        out = self.empty(rows.shape, rows.dtype) if out is None else out
        step = max(1, _PIECE_BYTES * len(rows) // max(1, rows.nbytes))
        for start in range(0, len(rows), step):
            piece = rows[start : start + step]
            out[start : start + step].set(piece)
            drop(piece)
        return out

    def download(self, array: Array) -> NDArray[Any]:
        """A copy in host memory."""
        host: NDArray[Any] = self._cupy.asnumpy(array)
        return host

    @property
    def available(self) -> int:
        """Bytes that can still be allocated, if no gaps are in the way."""
        free, _ = self._device.mem_info
        within_limit = self.limit - self._pool.used_bytes()
        return int(min(within_limit, free + self._pool.free_bytes()))

    @property
    def held(self) -> int:
        """Bytes that the pool has of the driver, in use or not."""
        return int(self._pool.total_bytes())

    def free_unused(self) -> None:
        """Give what the pool holds and nobody uses back to the driver."""
        self._pool.free_all_blocks()

    # Kernels

    def launch(
        self, curve: Curve, kernel: str, blocks: int, threads: int, *arguments: object
    ) -> None:
        """Start a kernel of scalars.cu, if there are blocks; see `Program.launch`."""
        self.program(curve, "scalars.cu").launch(kernel, blocks, threads, *arguments)

    def synchronize(self) -> None:
        """Wait for everything that was started."""
        self._stream.synchronize()

    def program(self, curve: Curve, file: str, group: int | None = None) -> Program:
        """A file of kernels, compiled on first use."""
        name = (curve.name, file, group)
        if name not in self._programs:
            start = time.perf_counter()
            self._programs[name] = Program(compiled(curve.name, HERE / file, group))
            seconds = time.perf_counter() - start
            if self._notify is not None and seconds > 1:
                points = "" if group is None else f" G{group}"
                self._notify(
                    f"compiled {file} for {curve.title}{points} in {seconds:.1f} s, once for this "
                    "machine: CuPy keeps it"
                )
        return self._programs[name]

    def programs(self) -> dict[str, Program]:
        """The programs compiled so far, by a title."""
        return {
            " ".join(str(part) for part in (curve, file, group) if part is not None): program
            for (curve, file, group), program in self._programs.items()
        }


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
