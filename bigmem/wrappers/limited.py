"""A limit on what is in use through one allocator."""

import sys
from typing import SupportsIndex

from .. import _core
from .._core import Block
from ..allocator import Allocator
from ..errors import OutOfMemory
from ..sizes import format_size, parse_size
from .base import Wrapper


class Limited(Wrapper):
    """Refuses allocations that would bring its live bytes over a limit.

    It counts sizes as asked for, and a block until it is back in the hands of the upstream: one
    that waits for its fences still counts. A `Budget` is the limit for memory, idle memory
    included, that makes room before it refuses; this one tells a part of a program its share.

    Parameters
    ----------
    upstream
        Where the memory comes from.
    limit
        Bytes, or a string such as ``"8GiB"``.
    name
        What error messages call it.
    """

    def __init__(
        self, upstream: Allocator, limit: SupportsIndex | str, *, name: str | None = None
    ) -> None:
        self.limit = parse_size(limit)
        self._budget = _core.Budget(min(self.limit, sys.maxsize))
        super().__init__(upstream, name=name)

    @property
    def live(self) -> int:
        """Bytes that count against the limit now."""
        return self._budget.used()

    def _set_limit(self, nbytes: int) -> None:
        """Another limit; live blocks may be beyond it."""
        self.limit = nbytes
        self._budget.set_limit(min(nbytes, sys.maxsize))

    def allocate(
        self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
    ) -> Block:
        """Return a block of the upstream's; `Allocator.allocate` says how.

        Raises
        ------
        OutOfMemory
            The limit or the upstream has no room.
        """
        size = self.check_request(nbytes, alignment)
        # Whatever comes between, an interrupt included: the charge ends with its object.
        charge = self._budget.charge(size)
        if charge is None:
            raise OutOfMemory(
                f"{self.name} has a limit of {format_size(self.limit)}: {format_size(self.live)} "
                f"are live, {format_size(size)} more were asked for"
            )
        block = self.upstream.allocate(size, alignment=alignment, zeroed=zeroed)
        return Block(block, allocator=self, on_release=charge, origin=block.origin)
