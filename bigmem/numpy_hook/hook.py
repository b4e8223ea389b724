"""Which allocator serves NumPy: in one context, or in every thread of the process."""

import sys
from collections.abc import Iterator
from typing import SupportsIndex

from .. import _core, osmem
from ..allocator import Allocator, Quick
from ..decorating import contextmanager
from ..errors import BigmemError
from ..registry import get_allocator
from ..sizes import parse_size
from . import default_handler, new_threads

MIN_BYTES = 1 << 20


@contextmanager
def use(allocator: Allocator, min_bytes: SupportsIndex | str = MIN_BYTES) -> Iterator[None]:
    """Serve NumPy's allocations of the block's context from `allocator`.

    Covers every array that NumPy makes for itself inside the ``with`` block, temporaries and
    results included: in this context, in asyncio tasks, ``asyncio.to_thread`` calls and copied
    contexts that start inside it, but in no other thread. Nests; the inner one passes what it
    does not serve on to the outer one. Arrays may outlive the block.

    As a decorator, ``@bigmem.use(allocator)`` makes a block of each call of a function or method,
    and of a coroutine function from start to end. Of a generator function, plain or asynchronous,
    each step is one: what its consumer makes between the steps is served as before.

    Parameters
    ----------
    allocator
        Any `Allocator`, also one written in Python. An exception in its `allocate` is printed and
        becomes a MemoryError.
    min_bytes
        Smallest request that `allocator` serves; the rest stays where it was.

    Raises
    ------
    TypeError
        `allocator` is no bigmem.Allocator.
    BigmemError
        `min_bytes` is no size, or 0.

    Examples
    --------
    >>> import numpy as np, bigmem
    >>> with bigmem.use(bigmem.make("recycle")):
    ...     total = (np.ones(1 << 20) + np.ones(1 << 20)).sum()
    """
    before = _core.numpy_set(_core.numpy_detour(*_route(allocator, min_bytes)))
    try:
        yield
    finally:
        _core.numpy_set(before)


def install(allocator: Allocator | None = None, min_bytes: SupportsIndex | str = MIN_BYTES) -> None:
    """Serve NumPy's allocations of every thread of the process, until `uninstall`.

    Threads that run already are covered too, where NumPy's default handler can be edited
    (`mechanism`); elsewhere this context and the threads that ``threading`` starts from now on.
    A second call replaces the first one's choice. `use` goes before it.

    Parameters
    ----------
    allocator
        As for `use`; the process default (`get_allocator`) if `None`.
    min_bytes
        Smallest request that `allocator` serves; smaller ones go straight to NumPy's own.

    Raises
    ------
    TypeError, BigmemError
        As for `use`.
    """
    route = _route(get_allocator() if allocator is None else allocator, min_bytes)
    reached_all = default_handler.edited()
    _core.numpy_install(*route)
    if not reached_all:
        new_threads.cover()


def uninstall() -> None:
    """Let NumPy's allocations go where they went before `install`; its arrays stay valid."""
    _core.numpy_install()
    new_threads.uncover()


def mechanism() -> str:
    """How `install` reaches the threads.

    Returns
    -------
    str
        ``"default handler"``: NumPy's default handler is edited, every thread is covered.
        ``"new threads"``: this NumPy does not let itself be edited; the installing context and
        threads started later are covered.
    """
    return "default handler" if default_handler.edited() else "new threads"


def _route(
    allocator: Allocator, min_bytes: SupportsIndex | str
) -> tuple[Allocator, Quick | None, int, int]:
    if not isinstance(allocator, Allocator):
        raise TypeError(f"expected a bigmem.Allocator, not {type(allocator).__name__}")
    least = parse_size(min_bytes)
    if least < 1:
        raise BigmemError("min_bytes must be at least 1")
    return allocator, allocator._quick(), osmem.physical_bytes(), min(least, sys.maxsize)
