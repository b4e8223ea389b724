"""CuPy's own pinned memory from bigmem: `cupyx.empty_pinned`, and what it stages copies with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._core import Block
from ..errors import BigmemError, OutOfMemory
from .default import default_allocator
from .driver import refuse_after_fork
from .pinned import PinnedAllocator

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation

# What CuPy had, while it is ours; in a list, since None is a choice of CuPy's too.
_before: list[Callable[[int], Any] | None] = []


def install_cupy(allocator: PinnedAllocator | None = None) -> None:
    """Serve CuPy's allocations of pinned memory, of every thread, until `uninstall_cupy`.

    That is what ``cupyx.empty_pinned`` gives, and what ``cupy.asarray`` and ``cupy.asnumpy`` stage
    their copies with. Those copies are recorded by nobody; their blocks wait until all that the
    GPU had to do when they were released is done. A second call replaces the first one's choice.

    Parameters
    ----------
    allocator
        Where the memory comes from; one for each device, which is kept, if `None`.

    Raises
    ------
    BigmemError
        CuPy is not installed, there is no GPU, or the allocator is closed.
    """
    if allocator is not None and not isinstance(allocator, PinnedAllocator):
        raise BigmemError(f"allocator is a PinnedAllocator, not {allocator!r}")
    if allocator is not None and allocator._closed:
        raise BigmemError(f"{allocator!r} takes no allocations")
    refuse_after_fork()
    cupy = _cupy()
    if allocator is None:
        default_allocator()  # what is missing shows here, and not in CuPy's midst
    if not _before:
        present = _present(cupy)
        if not _before:  # or another thread has put ours there meanwhile
            _before.append(present)
    cupy.cuda.set_pinned_memory_allocator(_Source(cupy, allocator))


def uninstall_cupy() -> None:
    """Let CuPy's pinned memory come from where it came before; its arrays stay valid.

    That is its default pool, another one of its pools, or no pool. A function of one's own cannot
    be found out: the default pool takes its place.
    """
    if _before:
        _cupy().cuda.set_pinned_memory_allocator(_before.pop())


class _Memory:
    """What CuPy keeps for as long as it needs the memory: it asks for `ptr` and `size`."""

    __slots__ = ("_block", "ptr", "size")

    def __init__(self, block: Block | None, size: int) -> None:
        self._block = block
        self.ptr = 0 if block is None else block.address
        self.size = size


class _Source:
    """Allocates for CuPy, as its own pools do."""

    def __init__(self, cupy: Any, allocator: PinnedAllocator | None) -> None:
        self._allocator = allocator
        self._device = cupy.cuda.runtime.getDevice
        self._error = cupy.cuda.runtime.CUDARuntimeError
        self._pointer = cupy.cuda.PinnedMemoryPointer

    def __call__(self, size: int) -> Any:
        if size == 0:
            return self._pointer(_Memory(None, 0), 0)
        chosen = self._allocator
        if chosen is None:
            chosen = default_allocator(self._device())
        try:
            block = chosen.allocate(size)
        except OutOfMemory as error:
            # CuPy goes on without pinned memory where it sees this error.
            raise self._error(_OUT_OF_MEMORY) from error
        return self._pointer(_Memory(block, size), 0)


def _cupy() -> Any:
    try:
        import cupy
    except (ImportError, OSError) as error:  # the latter where it can make no folder for its cache
        raise BigmemError(
            f"CuPy cannot be imported ({error}): pip install 'bigmem[cuda13]', or cuda12"
        ) from None
    return cupy


def _present(cupy: Any) -> Callable[[int], Any] | None:
    """What CuPy allocates with, which it does not tell: a byte that is asked for shows it."""
    pool = cupy.get_default_pinned_memory_pool()
    try:
        memory = cupy.cuda.alloc_pinned_memory(1).mem
    except cupy.cuda.runtime.CUDARuntimeError:
        return pool.malloc  # type: ignore[no-any-return]
    if isinstance(memory, cupy.cuda.pinned_memory.PooledPinnedMemory):
        pool = memory.pool() or pool
    elif type(memory) is cupy.cuda.PinnedMemory:
        return None
    return pool.malloc  # type: ignore[no-any-return]
