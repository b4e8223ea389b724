"""Large ordinary arrays to the GPU at the speed of pinned ones, through a few pinned blocks."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .._core import Block, CudaEvent
from ..errors import BigmemError
from ..sizes import format_size, parse_size
from .default import default_allocator
from .driver import Cuda, loaded
from .fences import _handle_of
from .pinned import PinnedAllocator

# A thread copies 8.6-10 GiB/s, a GPU takes five times as much.
_THREADS = min(8, len(os.sched_getaffinity(0)))
# Handing less than this to another thread takes longer than copying it.
_LEAST = 1 << 20
# How long to sleep before asking for an event again, at first and at most.
_PAUSES = (20e-6, 1e-3)

_ENDED = object()
Bytes = NDArray[np.uint8]


def upload(
    host_iterable: Iterable[Any],
    device_buffers: Iterable[Any],
    stream: Any,
    depth: int = 2,
    *,
    allocator: PinnedAllocator | None = None,
    chunk: SupportsIndex | str = "64MiB",
) -> None:
    """Copy ordinary host arrays to the GPU through pinned blocks.

    While the GPU copies out of one block, several threads fill the next. On return every host
    array has been read and may change; the copies are in the stream's order, like any other work
    that was submitted to it, and need not have happened yet.

    Parameters
    ----------
    host_iterable
        Arrays, memory maps, or anything that has the buffer protocol; C-contiguous. It is asked
        for one at a time, and nothing of it is kept, so that it may read or compute them.
    device_buffers
        For each where it goes, of as many bytes: arrays of CuPy, tensors of PyTorch, anything with
        ``__cuda_array_interface__``, or pairs (address, bytes). C-contiguous.
    stream
        As in `record`. It is one of the allocator's device, like the buffers.
    depth
        How many blocks to use: what is filled ahead of the GPU.
    allocator
        Where the blocks come from; one for the current device, which is kept, if `None`.
    chunk
        Size of a block, in bytes or as a string.

    Raises
    ------
    BigmemError
        The numbers or the sizes of the two sides differ, something is not contiguous, the stream
        is recording a graph, or CUDA refuses. What was submitted before happens all the same.
    """
    size = parse_size(chunk)
    if depth < 1 or size < 1:
        raise BigmemError(f"depth and chunk are at least 1, not {depth} and {size}")
    chosen = default_allocator() if allocator is None else allocator
    if not isinstance(chosen, PinnedAllocator):
        raise BigmemError(f"allocator is a PinnedAllocator, not {chosen!r}")
    handle, cuda = _handle_of(stream), loaded()
    cuda.fences.record(handle)  # before anything of ours is in a graph
    slots = [_Slot(cuda, chosen, handle) for _ in range(depth)]
    turn = 0
    try:
        with ThreadPoolExecutor(max(1, _THREADS - 1), "bigmem-upload") as pool:
            for source, target in _pairs(host_iterable, device_buffers):
                for at in range(0, len(source), size):
                    slots[turn].send(source[at : at + size], target + at, pool)
                    turn = (turn + 1) % depth
    finally:
        for slot in slots:
            slot.close()


class _Slot:
    """A pinned block, and the moment from which on it may be filled again."""

    def __init__(self, cuda: Cuda, allocator: PinnedAllocator, stream: int) -> None:
        self.cuda = cuda
        self.allocator = allocator
        self.stream = stream
        self.block: Block | None = None
        self.read: CudaEvent | None = None

    def send(self, source: Bytes, target: int, pool: ThreadPoolExecutor) -> None:
        """Copy to the GPU by way of the block."""
        self.wait()
        if self.block is None or self.block.nbytes < len(source):
            self.close()
            self.block = self.allocator.allocate(len(source))
        staged = np.frombuffer(memoryview(self.block), np.uint8, len(source))
        _fill(staged, source, pool)
        self.cuda.driver.copy_to_device(target, self.block.address, len(source), self.stream)
        self.read = self.cuda.fences.record(self.stream)

    def wait(self) -> None:
        """Return once the GPU has read what the block held."""
        pause, most = _PAUSES
        while self.read is not None and not self.read.done:
            time.sleep(pause)
            pause = min(1.5 * pause, most)

    def close(self) -> None:
        """Let the block go; it waits for the GPU. Without an event, for all that the GPU does."""
        if self.block is not None and self.read is not None:
            self.cuda.fences.attach(self.block.address, self.read)
        self.block = self.read = None


def _fill(target: Bytes, source: Bytes, pool: ThreadPoolExecutor) -> None:
    """Copy on several threads, this one among them."""
    parts = max(1, min(_THREADS, len(source) // _LEAST))
    step = -(-len(source) // parts)
    others = [
        pool.submit(np.copyto, target[at : at + step], source[at : at + step])
        for at in range(step, len(source), step)
    ]
    np.copyto(target[:step], source[:step])
    for other in others:
        other.result()


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
