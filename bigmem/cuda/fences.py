"""Telling an allocator what a GPU is still to do with its memory."""

from typing import Any

from .. import _core
from .._core import Block
from ..errors import BigmemError
from . import captures
from .driver import loaded
from .streams import current, stream_of


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
        `None` for the legacy default stream. A default stream is that of the device which this
        thread uses, unless the object tells of which device it is, as PyTorch's do.

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
    on = stream_of(stream)
    with current(on):
        event = fences.record(on.handle)
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
