"""One GPU through CuPy: memory, copies, kernels and when they are compiled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

import bigmem
from prover.backends.cuda.announce import Notify, announced
from prover.backends.cuda.program import (
    CPU_INSTEAD,
    HERE,
    Program,
    compiled,
    first_line,
    no_compiler,
    no_cupy,
)
from prover.backends.cuda.side_by_side import side_by_side
from prover.backends.cuda.staging import Staging
from prover.curves import Curve
from prover.errors import UnavailableBackend

Array = Any
"""An array in device memory: a ``cupy.ndarray``."""

Bytes = NDArray[np.uint8]

_PROGRAMS: list[tuple[str, int | None]] = [
    ("scalars.cu", None),
    ("sort.cu", None),
    ("msm.cu", 1),
    ("msm.cu", 2),
]
"""Files of kernels, each with its group, that every proof needs."""

_preparing = Lock()
"""Of several devices that want the same programs, one compiles them, and alone tells of it."""

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
        Told in lines when kernels have to be compiled, which takes seconds, once a machine.
    number
        Which GPU, counted from 0.
    sharers
        Among how many, this one included, the memory is divided.

    Raises
    ------
    UnavailableBackend
        Without CuPy, NVRTC, a GPU that works, or one of that number.
    """

    def __init__(
        self,
        limit: int | None = None,
        notify: Notify | None = None,
        number: int = 0,
        sharers: int = 1,
    ) -> None:
        try:
            import cupy
        except (ImportError, OSError) as error:
            raise no_cupy(error) from None
        try:
            count = cupy.cuda.runtime.getDeviceCount()
            if number >= count:
                present = "GPU 0 alone" if count == 1 else f"GPUs 0 to {count - 1}"
                raise UnavailableBackend(
                    f"there is no GPU {number} for the cuda backend: this machine has {present}"
                )
            self._device = cupy.cuda.Device(number)
            with self._device:
                free, total = self._device.mem_info
                self._stream = cupy.cuda.Stream(non_blocking=True)
                self._side = cupy.cuda.Stream(non_blocking=True)
                self._copies = cupy.cuda.Stream(non_blocking=True)
        except RuntimeError as error:  # CuPy's own errors are such
            raise UnavailableBackend(
                f"the cuda backend finds no usable NVIDIA GPU ({first_line(error)}); {CPU_INSTEAD}"
            ) from None
        try:
            cupy.cuda.nvrtc.getVersion()  # CuPy loads NVRTC when it is first asked for something
        except (RuntimeError, OSError) as error:
            raise no_compiler(error) from None
        self._cupy = cupy
        self._notify = notify
        self._pool = cupy.cuda.MemoryPool()
        wanted = int(free * _SHARE) if limit is None else min(limit, total)
        self.limit = wanted // sharers
        with self._device:  # each has a limit of its own in a pool, and 0 would be none
            self._pool.set_limit(size=max(1, self.limit))
        self._programs: dict[tuple[str, str, int | None], Program] = {}
        self._staging = Staging(number, notify)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Allocate from the device's pool and run on its stream.

        At the end nothing of what was uploaded stays in pinned memory.
        """
        with self._device, self._cupy.cuda.using_allocator(self._pool.malloc), self._stream:
            try:
                yield
            finally:
                self.release_uploads()

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

        The array may change afterwards; the copy is made in the current stream's turn. ``drop`` is
        told of each piece that was read. All that is large comes this way.
        """
        out = self.empty(rows.shape, rows.dtype) if out is None else out
        step = max(1, _PIECE_BYTES * len(rows) // max(1, rows.nbytes))
        pieces = [
            (rows[start : start + step], out[start : start + step])
            for start in range(0, len(rows), step)
        ]
        self._staging.copy(pieces, self._cupy.cuda.get_current_stream(), drop)
        return out

    def was_read(self, *arrays: NDArray[Any]) -> None:
        """Be told that nobody's work on a GPU uses these arrays, nor what was started here so far.

        Pinned memory of theirs is then free as soon as it is released, whatever the GPU does
        later. Of memory that others may be copying this must not be told: it would not wait for
        them any more.
        """
        self._staging.was_read(arrays, self._stream)

    def release_uploads(self) -> None:
        """Let go of the pinned memory of uploads so far, as the end of `use` does."""
        self._staging.release()

    @property
    def uploads(self) -> str:
        """Whether `upload` goes through pinned memory, and if not, why."""
        lack = self._staging.lack
        return "pinned" if lack is None else f"pageable: {lack}"

    def download(self, array: Array) -> NDArray[Any]:
        """A copy in host memory."""
        host: NDArray[Any] = self._cupy.asnumpy(array)
        return host

    @property
    def reach(self) -> int:
        """Bytes that all arrays may take together: the limit, or less while others hold memory."""
        free, _ = self._device.mem_info
        return int(min(self.limit, free + self.held))

    @property
    def available(self) -> int:
        """Bytes that can still be allocated, if no gaps are in the way."""
        return self.reach - int(self._pool.used_bytes())

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

    def record(self) -> Any:
        """An event after all that was started before."""
        return self._stream.record(self._cupy.cuda.Event())

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two events, when the second one has come."""
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run what is started inside after all that was started before, beside what follows.

        Nothing may be allocated inside, and what is used there must stay until `rejoin`.
        """
        self._side.wait_event(self._stream.record())
        with self._side:
            yield

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Upload inside without waiting for what was started before, until `rejoin`.

        Nothing may be allocated inside, and nothing that was started may still use the memory that
        is copied to.
        """
        with self._copies:
            yield

    def rejoin(self) -> None:
        """Let what follows wait for what `beside` and `ahead` started."""
        for stream in (self._side, self._copies):
            self._stream.wait_event(stream.record())

    def prepare(self, curve: Curve) -> None:
        """Compile all that a proof needs, side by side, unless it is there already."""
        wanted = [name for name in _PROGRAMS if (curve.name, *name) not in self._programs]
        if not wanted:
            return
        title = f"CUDA kernels for {curve.title}"
        with bigmem.layer("kernels"), _preparing, announced(title, self._notify):
            modules = side_by_side(lambda name: self._compiled(curve, *name), wanted, len(wanted))
            for name, module in zip(wanted, modules, strict=True):
                self._programs[curve.name, *name] = Program(module)

    def program(self, curve: Curve, file: str, group: int | None = None) -> Program:
        """A file of kernels, compiled on first use."""
        name = (curve.name, file, group)
        if name not in self._programs:
            with announced(f"{file} for {curve.title}", self._notify):
                self._programs[name] = Program(self._compiled(curve, file, group))
        return self._programs[name]

    def _compiled(self, curve: Curve, file: str, group: int | None) -> Any:
        with self._device:
            return compiled(curve.name, HERE / file, group, self._device.id)
