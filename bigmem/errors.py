"""The errors of bigmem; they are made by the core, which raises most of them."""

from ._core import BigmemError, InvalidRelease, OutOfMemory

__all__ = ["BigmemError", "InvalidRelease", "OutOfMemory"]
