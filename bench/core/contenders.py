"""What is compared, and how a process is set up for it."""

import ctypes.util
from dataclasses import dataclass, field, replace
from pathlib import Path

import bigmem

# Far beyond any request here: the C library then serves all of them from its heap.
_NEVER = str(1 << 40)


class NotInstalled(Exception):
    """The library that a contender preloads is not on this machine."""


@dataclass(frozen=True, eq=False)
class Contender:
    """One way to allocate.

    Attributes
    ----------
    name
        What tables call it.
    allocator
        Name for `bigmem.make`; `None` is NumPy on whatever malloc the process has.
    environment
        Variables to start its process with.
    library, package
        Base name of the malloc to preload, and the Debian package it is in.
    """

    name: str
    allocator: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    library: str | None = None
    package: str | None = None

    def make(self) -> bigmem.Allocator | None:
        """Its allocator, in a process that was started with `variables`."""
        if self.library and self.library not in Path("/proc/self/maps").read_text():
            raise RuntimeError(f"lib{self.library} was not preloaded")
        return None if self.allocator is None else bigmem.make(self.allocator)

    def variables(self, folder: Path | None) -> dict[str, str]:
        """What to add to the environment of its process.

        Parameters
        ----------
        folder
            Where to look for libraries before the system's own places.

        Raises
        ------
        NotInstalled
            The library to preload is nowhere.
        """
        if self.library is None:
            return self.environment
        found = None
        if folder is not None:
            here = sorted(folder.glob(f"**/lib{self.library}.so*"))
            found = str(here[0].resolve()) if here else None
        found = found or ctypes.util.find_library(self.library)
        if found is None:
            raise NotInstalled(f"not installed (apt install {self.package})")
        return {**self.environment, "LD_PRELOAD": found}


GLIBC = Contender("glibc")
JEMALLOC = Contender("jemalloc", library="jemalloc", package="libjemalloc2")
MIMALLOC = Contender("mimalloc", library="mimalloc", package="libmimalloc2.0")

OUT = Contender("out=")
NUMPY = Contender("numpy")
RECYCLE = Contender("recycle", "recycle")
DEFERRED = Contender("deferred", "deferred")

MALLOCS = (
    NUMPY,
    Contender(
        "numpy, glibc raised",
        environment={
            "GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={_NEVER}"
            f":glibc.malloc.trim_threshold={_NEVER}"
        },
    ),
    replace(JEMALLOC, name="numpy, jemalloc"),
    replace(MIMALLOC, name="numpy, mimalloc"),
    Contender("numpy, tcmalloc", library="tcmalloc_minimal", package="libtcmalloc-minimal4"),
)
POLICIES = (Contender("mapped", "mapped"), Contender("dontneed", "dontneed"), DEFERRED, RECYCLE)
