"""A log of what an allocator does, and when."""

import json
import os
import re
import time
import weakref
import zlib
from pathlib import Path
from typing import Any, SupportsIndex

from .. import _core
from .._core import Block
from ..allocator import Allocator
from ..errors import BigmemError
from ..layers import observe, unobserve
from ..native import NativeAllocator
from ..sizes import parse_size
from .base import Wrapper

_SMALLEST = 64 << 10
_MOST_BRACKETS = 1000  # of an event: with more, its depth could be more than the parser's stack
_GZIP = b"\x1f\x8b"
_GZIP_STREAM = 31  # what zlib calls the format

Event = dict[str, Any]


class Traced(Wrapper):
    """Logs every allocation and release, the reclaims and waits of the arena below, and layers.

    The log is a file in the Chrome trace format, which Perfetto (https://ui.perfetto.dev) and
    chrome://tracing open, one event a line. ``allocate`` and ``release`` carry how long they took,
    `nbytes` and `address`; ``reclaim`` stands on the thread that did it; ``wait`` is a caller who
    had to reclaim or wait; ``stall`` is a call by which any `bigmem.cuda.PinnedAllocator` may have
    made the whole process wait for a GPU; a counter follows the live bytes; every call of a
    `bigmem.layer` in the process stands around what happened in it, or by its task if it ran in one
    of asyncio's. Times are microseconds of `time.monotonic`. An allocation that was to be all zero
    says ``zeroed``. The first event tells the ``version`` of all this, which is 2; the first
    version told none, nor ``zeroed`` and ``touched``. `bench.replay` replays logs.

    Events are written into a mapping of the file: a process that is killed leaves all of them, and
    `bigmem.wrappers.traced.read` reads logs that are complete, still open, or cut short. Those of a
    process that was killed have their full size, the rest of it NUL bytes: `read` them, not a JSON
    parser. A child of fork logs nothing. Of several `Traced` around one arena the latest logs the
    reclaims.

    Parameters
    ----------
    upstream
        The allocator to watch.
    path
        File to write; a file that exists there is replaced by a new one, anything else is refused.
        A link stays, and leads to the new file.
        `None` keeps the log in memory, for `events`.
    where
        Whether to log the Python code that allocated, as ``"file.py:12"``.
    touched
        Whether a ``release`` tells how many of the block's bytes are in memory then. Of an
        upstream that gives fresh pages, as `MappedAllocator` does, they are those that the program
        has touched, in whole pages; what others hand out warm counts too.
    max_bytes
        Size of the file until it is closed, and the most that it holds; an allocation with its
        release takes 500 to 600 bytes. Events beyond are dropped, and counted in `dropped`.
    name
        What the trace calls it.
    """

    def __init__(
        self,
        upstream: Allocator,
        path: str | os.PathLike[str] | None = None,
        *,
        where: bool = False,
        touched: bool = False,
        max_bytes: SupportsIndex | str = "64MiB",
        name: str | None = None,
    ) -> None:
        size = parse_size(max_bytes)
        if size < _SMALLEST:
            raise BigmemError(f"a log needs max_bytes of at least {_SMALLEST}, not {size}")
        super().__init__(upstream, name=name)
        self.path = None if path is None else Path(path)
        self.where = where
        self.touched = touched
        # The log takes the place of a file, not of a link that leads there.
        place = None if path is None else os.path.realpath(path)
        self._log = _core.TraceLog(place, size, self.name)
        observe(self._log.layer)
        # Also at exit: that completes the file.
        weakref.finalize(self, _complete, self._log)
        below = upstream
        while isinstance(below, Wrapper):
            below = below.upstream
        if isinstance(below, NativeAllocator):
            below._core.observe(self._log)

    @property
    def dropped(self) -> int:
        """How many events found no room in the log."""
        return self._log.dropped()

    def allocate(
        self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
    ) -> Block:
        size = self.check_request(nbytes, alignment)
        begin = time.monotonic()
        block = self.upstream.allocate(size, alignment=alignment, zeroed=zeroed)
        return self._log.allocated(block, begin, self, zeroed, self.where, self.touched)

    def events(self) -> list[Event]:
        """What has been logged so far, in the order of writing."""
        return _parse(self._log.read(), self.name)

    def close(self) -> None:
        """Complete the log, and refuse further allocations. Later events are not logged."""
        super().close()
        _complete(self._log)


def _complete(log: _core.TraceLog) -> None:
    unobserve(log.layer)
    log.close()


def read(path: str | os.PathLike[str]) -> list[Event]:
    """The events of a log, in the order of writing.

    Parameters
    ----------
    path
        A file of `Traced`: complete, still being written, or left by a process that died; also
        compressed by gzip.

    Returns
    -------
    list of dict
        As in the Chrome trace format; ``ts`` and ``dur`` in microseconds.

    Raises
    ------
    BigmemError
        The file is no such log.
    """
    log = Path(path).read_bytes()
    if log.startswith(_GZIP):
        try:
            log = zlib.decompress(log, _GZIP_STREAM)
        except zlib.error as error:
            raise BigmemError(f"{path} is damaged: {error}") from None
    return _parse(log, str(path))


def _parse(log: bytes, name: str) -> list[Event]:
    if not log.startswith(b"[\n"):
        raise BigmemError(f"{name} is no log of bigmem")
    events = []
    for line in log[2:].split(b"\n"):
        # Bytes that a writer had claimed and not yet written are NUL. What stands beside them may
        # be part of an event, and is skipped then.
        for piece in re.split(b"\0+", line):
            text = piece.rstrip(b",")
            if text in (b"", b"]"):
                continue
            try:
                if text.count(b"[") + text.count(b"{") > _MOST_BRACKETS:
                    raise ValueError("no event")
                event = json.loads(text)
            except (ValueError, RecursionError):
                event = None
            # "ph" comes first in an event, so that no part of one is a whole object with it.
            if isinstance(event, dict) and "ph" in event:
                events.append(event)
            elif b"\0" not in line:
                raise BigmemError(f"{name} is damaged: {text[:60]!r}")
    return events
