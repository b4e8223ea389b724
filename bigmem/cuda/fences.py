"""Telling an allocator what a GPU is still to do with its memory."""

import operator
from typing import Any

from .. import _core
from .._core import Block
from ..errors import BigmemError
from . import captures
from .driver import loaded


def record(array: Any, stream: Any = None) -> None:
    """Keep a block until everything that was submitted to a stream so far is done.

    To be called after a copy from or to the array has been submitted. When the block is released
    it is neither reused nor given back before that. A block of a `PinnedAllocator` of which nothing
    was recorded waits for all work in all streams instead, so that recording is never needed for
    safety there: it lets blocks be reused sooner. For blocks of other allocators it is needed.

    Parameters
    ----------
    array
        An array, tensor, buffer or `Block`: any that begins within the memory of the block, whoever
        owns it.
    stream
        A stream of CuPy or PyTorch, any object with ``__cuda_stream__``, or a handle as a number;
        `None` for the legacy default stream.

    Raises
    ------
    BigmemError
        The memory is in no living block; or the stream is recording a graph, which may run at any
        later time: keep the array alive as long as the graph then.
    """
    captures.watch()
    address, nbytes = _range_of(array)
    if not nbytes:
        return
    fences = loaded().fences
    event = fences.record(_handle_of(stream))
    if fences.attach(address, event):
        return
    block = _core.block_at(address)
    if block is None:
        raise BigmemError(f"no living block of an allocator contains the address {address:#x}")
    block.fence(event)


def _range_of(array: Any) -> tuple[int, int]:
    """Address and size in bytes; the size of a tensor or array is only told from 0."""
    if isinstance(array, Block):
        return array.address, array.nbytes
    interface = getattr(array, "__array_interface__", None)
    on_gpu = getattr(array, "is_cuda", False) or hasattr(array, "__cuda_array_interface__")
    if interface is None and on_gpu:
        raise BigmemError(
            f"this {type(array).__name__} is on the GPU; record() is about memory of the host"
        )
    try:
        if interface is not None:
            return int(interface["data"][0]), int(array.nbytes)
        if hasattr(array, "data_ptr"):
            return int(array.data_ptr()), int(array.numel())
        return _core.buffer_range(array)
    except (TypeError, BufferError, LookupError, AttributeError):
        raise BigmemError(
            f"record() takes an array, a tensor, a buffer or a block, not {type(array).__name__}"
        ) from None


def _handle_of(stream: Any) -> int:
    try:
        handle = _handle_shown_by(stream)
    except (TypeError, ValueError, LookupError):
        handle = -1
    if not 0 <= handle < 1 << 64:
        what = repr(stream) if isinstance(stream, int) else type(stream).__name__
        raise BigmemError(f"expected a stream, not {what}")
    return handle


def _handle_shown_by(stream: Any) -> int:
    if stream is None:
        return 0
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # A method, (version, handle); a plain tuple in its first implementations.
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("ptr", "cuda_stream"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(handle)
    return operator.index(stream)
