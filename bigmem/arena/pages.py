"""Where an arena's memory comes from."""

import os
from dataclasses import dataclass
from typing import Literal

from ..errors import BigmemError
from ..osmem import transparent_huge_pages

HugeChoice = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class AnonymousPages:
    """Private anonymous memory.

    Parameters
    ----------
    huge
        ``"auto"`` asks for 2 MiB pages for blocks of 4 MiB and more, as NumPy does, where rounding
        to whole pages costs at most a quarter; like NumPy it asks for none if
        ``NUMPY_MADVISE_HUGEPAGE=0`` is in the environment, so that one variable puts both into the
        same regime. ``"always"`` asks for every block of 2 MiB and more. ``"never"`` means 4 KiB
        pages even where the system would choose huge ones.
    numa
        Not available yet; `None` leaves the node to the kernel.
    """

    huge: HugeChoice = "auto"
    numa: None = None

    def __post_init__(self) -> None:
        if self.huge not in ("auto", "always", "never"):
            raise BigmemError(f"huge is 'auto', 'always' or 'never', not {self.huge!r}")
        if self.numa is not None:
            raise BigmemError("this version of bigmem does not place memory on NUMA nodes")

    def _resolve(self) -> HugeChoice:
        """The choice as this process and machine make it now."""
        if transparent_huge_pages() == "never":
            return "never"
        if self.huge == "auto" and os.environ.get("NUMPY_MADVISE_HUGEPAGE") == "0":
            return "never"
        return self.huge
