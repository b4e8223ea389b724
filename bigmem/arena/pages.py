"""Where an arena's memory comes from."""

import errno
import os
import warnings
from dataclasses import dataclass
from typing import Literal

from .. import _core
from ..errors import BigmemError
from ..osmem import huge_pages_work, numa_nodes

HugeChoice = Literal["auto", "always", "never"]
NumaChoice = Literal["local", "interleave"] | int | None

_NUMA = {None: 0, "local": 1, "interleave": 2}
_NUMA_NODE = 3


@dataclass(frozen=True, slots=True)
class AnonymousPages:
    """Private anonymous memory.

    Parameters
    ----------
    huge
        ``"auto"`` asks for 2 MiB pages for blocks of 2 MiB and more that lose at most a quarter to
        the rest of their last page, where a first try in this process gets any; like NumPy it asks
        for none if ``NUMPY_MADVISE_HUGEPAGE=0`` is in the environment, so that one variable puts
        both into the same regime. ``"always"`` asks for every block of 2 MiB and more; a system
        that has none to give serves 4 KiB pages. ``"never"`` means 4 KiB pages even where the
        system would choose huge ones.
    numa
        The node that memory comes from. `None` leaves it to the policy of the thread that touches
        it first; ``"local"`` takes the node that thread runs on; ``"interleave"`` spreads the pages
        over every node that the process may use; a number prefers that node, and takes the others
        when it is full. Where the kernel places no memory for this process, making an allocator
        warns (`RuntimeWarning`) and the choice has no effect.
    prefault
        Make the fresh memory of a block resident before the block is handed out: `allocate` takes
        longer, without the GIL, and the first fill takes no page faults. Memory that is reused is
        resident anyway.

    Raises
    ------
    BigmemError
        If a choice is none of the above, or names a node that this machine does not have.
    """

    huge: HugeChoice = "auto"
    numa: NumaChoice = None
    prefault: bool = False

    def __post_init__(self) -> None:
        if self.huge not in ("auto", "always", "never"):
            raise BigmemError(f"huge is 'auto', 'always' or 'never', not {self.huge!r}")
        if isinstance(self.numa, bool) or not isinstance(self.numa, int | str | None):
            raise BigmemError(f"numa is None, 'local', 'interleave' or a node, not {self.numa!r}")
        if isinstance(self.numa, int):
            nodes = numa_nodes()
            if self.numa < 0 or (nodes and self.numa not in nodes):
                known = ", ".join(map(str, nodes)) or "none"
                raise BigmemError(f"there is no NUMA node {self.numa}; this machine has: {known}")
        elif self.numa not in _NUMA:
            raise BigmemError(f"numa is None, 'local', 'interleave' or a node, not {self.numa!r}")
        if not isinstance(self.prefault, bool):
            raise BigmemError(f"prefault is True or False, not {self.prefault!r}")

    def _resolve(self) -> HugeChoice:
        """The choice as this process and machine make it now."""
        if self.huge != "auto":
            return self.huge
        wanted = os.environ.get("NUMPY_MADVISE_HUGEPAGE") != "0"
        return "auto" if wanted and huge_pages_work() else "never"

    def _native(self, *, secret: bool = False) -> _core.AnonymousPages:
        """The same for the core, which keeps secret memory out of core dumps and children."""
        if isinstance(self.numa, int):
            pages = _core.AnonymousPages(_NUMA_NODE, self.numa, secret)
        else:
            pages = _core.AnonymousPages(_NUMA[self.numa], 0, secret)
        refusal = pages.numa_refusal()
        if refusal == errno.EINVAL:
            raise BigmemError(f"this process may not use the memory of NUMA node {self.numa}")
        if refusal:
            warnings.warn(
                f"numa={self.numa!r} has no effect: the kernel places no memory for this process "
                f"({os.strerror(refusal)})",
                RuntimeWarning,
                stacklevel=4,  # where the allocator is made
            )
        return pages
