"""Large ordinary arrays to the GPU at the speed of pinned ones, through slots of pinned memory."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .._core import Block, CudaStage
from ..errors import BigmemError
from ..sizes import format_size, parse_size
from .default import default_allocator
from .driver import Cuda, loaded
from .fences import _handle_of
from .pinned import PinnedAllocator

# Measured on 16 cores: one thread copies 7.5 GiB/s, eight to twelve keep a GPU busy that takes 51.
_THREADS = min(12, len(os.sched_getaffinity(0)))
# Smaller ones keep the GPU waiting for its next order (2 MiB: 48 GiB/s; 1 MiB: 42), larger ones do
# not stay in the caches (8 MiB: 47; 16 MiB: 34). This gives 49.
_CHUNK = 4 << 20

_PAGE = 4096
_ENDED = object()
Bytes = NDArray[np.uint8]


def upload(
    host_iterable: Iterable[Any],
    device_buffers: Iterable[Any],
    stream: Any,
    depth: int = 2,
    *,
    allocator: PinnedAllocator | None = None,
    chunk: SupportsIndex | str = _CHUNK,
) -> None:
    """Copy ordinary host arrays to the GPU through pinned memory.

    Several threads cut an array into chunks; while the GPU copies one of a thread's chunks, the
    thread fills the next. On return every host array has been read and may change; the copies are
    in the stream's order, like any other work that was submitted to it, and need not have happened
    yet.

    Parameters
    ----------
    host_iterable
        Arrays, memory maps, or anything that has the buffer protocol; C-contiguous. It is asked
        for one at a time, and nothing of it is kept, so that it may read or compute them.
    device_buffers
        For each where it goes, of as many bytes: arrays of CuPy, tensors of PyTorch, anything with
        ``__cuda_array_interface__``, or pairs (address, bytes). C-contiguous.
    stream
        As in `record`. It is one of the allocator's device, like the buffers. With the per-thread
        default stream, this thread is the only one that copies.
    depth
        How many chunks each thread has pinned memory for: what it may fill ahead of the GPU.
    allocator
        Where the pinned memory comes from; one for the stream's device, which is kept, if `None`.
    chunk
        How much a thread copies at a time, in bytes or as a string; rounded up to 4 KiB.

    Raises
    ------
    BigmemError
        The numbers or the sizes of the two sides differ, something is not contiguous, the stream
        is recording a graph, or CUDA refuses. What was submitted before happens all the same.
    """
    size = parse_size(chunk)
    if not isinstance(depth, int) or depth < 1 or size < 1:
        raise BigmemError(f"depth and chunk are whole numbers from 1, not {depth!r} and {size}")
    handle, cuda = _handle_of(stream), loaded()
    chosen = default_allocator(stream=handle) if allocator is None else allocator
    if not isinstance(chosen, PinnedAllocator):
        raise BigmemError(f"allocator is a PinnedAllocator, not {chosen!r}")
    cuda.fences.record(handle)  # before anything of ours is in a graph
    staging = _Staging(cuda, chosen, handle, depth, -(-size // _PAGE) * _PAGE)
    try:
        for source, target in _pairs(host_iterable, device_buffers):
            staging.send(source, target)
    finally:
        staging.close()


class _Staging:
    """A pinned block, as large as what was sent so far has needed, and who copies through it."""

    def __init__(
        self, cuda: Cuda, allocator: PinnedAllocator, stream: int, depth: int, chunk: int
    ) -> None:
        self.cuda = cuda
        self.allocator = allocator
        self.stream = stream
        self.depth = depth
        self.chunk = chunk
        self.piece = self.threads = 0  # what the block is for
        self.block: Block | None = None
        self.stage: CudaStage | None = None

    def send(self, source: Bytes, target: int) -> None:
        """Submit the copy of an array, after reading it."""
        if not len(source):
            return
        piece = max(self.piece, _doubled(len(source), self.chunk, least=_PAGE))
        threads = max(self.threads, _doubled(-(-len(source) // self.chunk), _THREADS))
        if self.stage is None or (piece, threads) != (self.piece, self.threads):
            self.stage = self._grown(piece, threads)
        self.stage.send(source.data, target)

    def _grown(self, piece: int, threads: int) -> CudaStage:
        self.close()
        self.piece, self.threads = piece, threads
        self.block = self.allocator.allocate(piece * threads * self.depth)
        return CudaStage(
            self.cuda.fences,
            self.stream,
            self.block.address,
            piece,
            threads,
            self.depth,
        )

    def close(self) -> None:
        """Let the block go; it waits for the GPU. Without an event, for all that the GPU does."""
        if self.block is not None:
            with suppress(BigmemError):
                self.cuda.fences.attach(self.block.address, self.cuda.fences.record(self.stream))
            self.block.release()
        self.block = self.stage = None


def _doubled(need: int, most: int, least: int = 1) -> int:
    """A power of two that is enough, within limits: what grows so grows seldom."""
    return min(most, max(least, 1 << (need - 1).bit_length()))


def _pairs(hosts: Iterable[Any], buffers: Iterable[Any]) -> Iterator[tuple[Bytes, int]]:
    """The bytes of each host array, and the address that they go to."""
    for side in (hosts, buffers):
        if not isinstance(side, Iterable):
            raise BigmemError(f"upload() takes several arrays, as a list, not {side!r:.80}")
    targets = iter(buffers)
    number = 0
    for number, host in enumerate(hosts, 1):
        buffer = next(targets, _ENDED)
        if buffer is _ENDED:
            raise BigmemError(f"there are only {number - 1} device buffers, and more host arrays")
        source = _bytes_of(host)
        address, nbytes = _target(buffer)
        if len(source) != nbytes:
            raise BigmemError(
                f"host array {number} has {format_size(len(source))} and its device buffer "
                f"{format_size(nbytes)} ({len(source)} and {nbytes} bytes)"
            )
        yield source, address
    if next(targets, _ENDED) is not _ENDED:
        raise BigmemError(f"there are only {number} host arrays, and more device buffers")


def _bytes_of(host: Any) -> Bytes:
    if isinstance(host, np.ndarray):
        if host.dtype.hasobject:
            raise BigmemError(f"an array of {host.dtype} holds references, which a GPU cannot use")
        if not host.flags.c_contiguous:
            raise BigmemError("a host array is not C-contiguous; numpy.ascontiguousarray copies it")
        if host.nbytes == 0:
            return np.empty(0, np.uint8)
        return np.asarray(host).reshape(-1).view(np.uint8)
    try:
        view = memoryview(host)
    except TypeError:
        raise BigmemError(
            f"{type(host).__name__} has no buffer to upload; NumPy arrays and memory maps have"
        ) from None
    if not view.c_contiguous:
        raise BigmemError("a host buffer is not C-contiguous")
    return np.frombuffer(view.cast("B"), np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _target(buffer: Any) -> tuple[int, int]:
    """Address and bytes of memory on the device."""
    if isinstance(buffer, tuple):
        try:
            address, nbytes = map(operator.index, buffer)
        except (TypeError, ValueError):
            raise BigmemError(f"a device buffer is (address, bytes), not {buffer!r}") from None
        if not 0 <= address < 1 << 64:
            raise BigmemError(f"there is no memory at the address {address}")
        return address, nbytes
    # Tensors that require gradients, and types that NumPy has not, have no array interface.
    if getattr(buffer, "is_cuda", False) and hasattr(buffer, "data_ptr"):
        if not buffer.is_contiguous():
            raise BigmemError("a tensor on the device is not contiguous")
        return buffer.data_ptr(), buffer.numel() * buffer.element_size()
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is None:
        raise BigmemError(
            f"{type(buffer).__name__} is no memory of a GPU: it has no __cuda_array_interface__"
        )
    address, read_only = interface["data"]
    if read_only:
        raise BigmemError("an array on the device is read-only")
    item = int(interface["typestr"][2:])
    strides, expected = interface.get("strides"), item
    for length, stride in zip(
        reversed(interface["shape"]), reversed(strides or ()), strict=strides is not None
    ):
        if length > 1 and stride != expected:
            raise BigmemError("an array on the device is not C-contiguous")
        expected *= length
    nbytes = item
    for length in interface["shape"]:
        nbytes *= length
    return address, nbytes
