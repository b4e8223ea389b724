"""Large ordinary arrays to the GPU at the speed of pinned ones, through slots of pinned memory."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .._core import Block, CudaStage
from ..errors import BigmemError
from ..sizes import format_size, parse_size
from .default import default_allocator
from .driver import loaded
from .pinned import PinnedAllocator
from .streams import PER_THREAD, current, stream_of

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
    with Uploads(stream, depth, allocator=allocator, chunk=chunk) as uploads:
        uploads.send(host_iterable, device_buffers)


class Uploads:
    """What `upload` does, in any number of calls through the same pinned memory.

    `upload` takes pinned memory at every call and releases it at the end. Where calls follow each
    other closely, or the allocator wipes what is released, that takes as much memory again, or
    a while. This holds one block, as large as what was sent so far has needed, until it is closed;
    it is a context that closes itself. One thread may use it at a time.

    Parameters
    ----------
    stream, depth, allocator, chunk
        As in `upload`.
    """

    def __init__(
        self,
        stream: Any,
        depth: int = 2,
        *,
        allocator: PinnedAllocator | None = None,
        chunk: SupportsIndex | str = _CHUNK,
    ) -> None:
        size = parse_size(chunk)
        if not isinstance(depth, int) or depth < 1 or size < 1:
            raise BigmemError(f"depth and chunk are whole numbers from 1, not {depth!r} and {size}")
        self._stream, self._cuda = stream_of(stream), loaded()
        if allocator is None:
            with current(self._stream):
                allocator = default_allocator(stream=self._stream.handle)
        if not isinstance(allocator, PinnedAllocator):
            raise BigmemError(f"allocator is a PinnedAllocator, not {allocator!r}")
        self._allocator = allocator
        self._depth = depth
        self._chunk = -(-size // _PAGE) * _PAGE
        self._piece = self._threads = 0  # what the block is for
        self._block: Block | None = None
        self._stage: CudaStage | None = None

    def send(self, host_iterable: Iterable[Any], device_buffers: Iterable[Any]) -> None:
        """Copy arrays as `upload` does, and keep the pinned memory unless that fails."""
        with current(self._stream):
            # Refused before anything of ours is in a graph.
            self._cuda.fences.record(self._stream.handle)
        try:
            for source, target in _pairs(host_iterable, device_buffers):
                with current(self._stream):
                    self._send(source, target)
        except BaseException:
            self.close()  # of a copy that was refused half way nobody knows when it is over
            raise

    def close(self) -> None:
        """Release the pinned memory, which waits for the GPU; another `send` takes new."""
        block, self._block, self._stage = self._block, None, None
        if block is not None:
            # Without an event it waits for all that the GPU does. The per-thread stream is another
            # one in each thread, and others may have sent.
            if self._stream.handle != PER_THREAD:
                with suppress(BigmemError), current(self._stream):
                    event = self._cuda.fences.record(self._stream.handle)
                    self._cuda.fences.attach(block.address, event)
            block.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _send(self, source: Bytes, target: int) -> None:
        if not len(source):
            return
        piece = max(self._piece, _doubled(len(source), self._chunk, least=_PAGE))
        threads = max(self._threads, _doubled(-(-len(source) // self._chunk), _THREADS))
        if self._stage is None or (piece, threads) != (self._piece, self._threads):
            self._stage = self._grown(piece, threads)
        self._stage.send(source.data, target)

    def _grown(self, piece: int, threads: int) -> CudaStage:
        self.close()
        self._piece, self._threads = piece, threads
        self._block = self._allocator.allocate(piece * threads * self._depth)
        return CudaStage(
            self._cuda.fences,
            self._stream.handle,
            self._block.address,
            piece,
            threads,
            self._depth,
        )


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
