"""Which stream an object of some library's is."""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..errors import BigmemError
from .driver import loaded

PER_THREAD = 2
"""The handle of the default stream of a thread, which is another one in each."""

_DEFAULT_STREAMS = (0, 1, PER_THREAD)
"""Those of the default stream as it is compiled for, and of the legacy one, too."""


class Stream(NamedTuple):
    """A stream of the driver.

    Attributes
    ----------
    handle
        Its number.
    device
        Of a default stream, since those of all devices have the same handles; `None` for the one
        that the thread uses, and for other streams.
    """

    handle: int
    device: int | None = None


def stream_of(shown: Any) -> Stream:
    """The stream that an object of CuPy or PyTorch, or a number, stands for.

    Raises
    ------
    BigmemError
        It is none.
    """
    try:
        handle = _handle_of(shown)
        device = _device_of(shown) if handle in _DEFAULT_STREAMS else None
    except (TypeError, ValueError, LookupError):
        handle, device = -1, None
    if not 0 <= handle < 1 << 64:
        what = repr(shown) if isinstance(shown, int) else type(shown).__name__
        raise BigmemError(f"expected a stream, not {what}")
    return Stream(handle, device)


@contextmanager
def current(stream: Stream) -> Iterator[None]:
    """Let the handle of a default stream be that of the stream's device meanwhile."""
    driver = loaded().driver
    # A device that nobody uses has no context, and nothing is submitted there.
    if stream.device is None or not driver.enter(stream.device):
        yield
        return
    try:
        yield
    finally:
        driver.leave()


def _handle_of(shown: Any) -> int:
    if shown is None:
        return 0
    protocol = getattr(shown, "__cuda_stream__", None)
    if protocol is not None:
        # A method, (version, handle); a plain tuple in its first implementations.
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("ptr", "cuda_stream"):
        handle = getattr(shown, name, None)
        if handle is not None:
            return int(handle)
    return operator.index(shown)


def _device_of(shown: Any) -> int | None:
    # PyTorch's, and CuPy's, where -1 is whichever device is used.
    for name in ("device_index", "device_id"):
        device = getattr(shown, name, None)
        if device is not None:
            return int(device) if device >= 0 else None
    return None
