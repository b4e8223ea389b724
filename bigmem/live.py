"""What is in use: the leak report."""

import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

from . import _core
from .sizes import format_size

_PACKAGE = f"{Path(__file__).parent}/"


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """One block in use, as `live_blocks` found it.

    Attributes
    ----------
    nbytes
        Size as asked for.
    age
        Seconds since it was made.
    allocator
        Name of its allocator.
    address
        Address of its first byte.
    where
        The Python code that made it, as ``"file.py:12"``, or `None` if nobody took note.
    """

    nbytes: int
    age: float
    allocator: str
    address: int
    where: str | None

    def __str__(self) -> str:
        made = "" if self.where is None else f", made at {self.where}"
        return f"{format_size(self.nbytes)} from {self.allocator}, {self.age:.1f} s old{made}"


def live_blocks() -> list[LiveBlock]:
    r"""Every block of the process that is in use, the largest first.

    A block that another one stands on, as the upstream's below a wrapper's, is not listed beside
    it. Nor are released blocks, whether they wait for a fence or in a quarantine.

    Where a block was made is known for those of `Guarded` and of `Traced` with ``where=True``, and
    for all others while `tracemalloc` traces; let it keep some frames, as ``tracemalloc.start(8)``,
    for the innermost one is bigmem's own.

    For people: ``print(*bigmem.live_blocks(), sep="\n")``.
    """
    now = time.monotonic()
    found = [
        LiveBlock(
            nbytes=block.nbytes,
            age=max(0.0, now - block.born),
            allocator=block.allocator.name,
            address=block.address,
            where=_where(block),
        )
        for block in _core.live_blocks()
    ]
    return sorted(found, key=lambda block: -block.nbytes)


def _where(block: _core.Block) -> str | None:
    if block.origin is not None:
        return str(block.origin)
    # Oldest frame first.
    traceback = tracemalloc.get_object_traceback(block)
    if traceback is None:
        return None
    outside = [frame for frame in traceback if not frame.filename.startswith(_PACKAGE)]
    frame = outside[-1] if outside else traceback[-1]
    return f"{frame.filename}:{frame.lineno}"
