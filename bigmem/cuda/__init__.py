"""Pinned memory: `PinnedAllocator`, fences on a GPU's work, and what libraries need of them.

Importing this calls no function of CUDA and imports no library that does; the first
`PinnedAllocator`, or the first `record`, finds the driver.
"""

from .captures import capturing
from .fences import record
from .pinned import PinnedAllocator

__all__ = ["PinnedAllocator", "capturing", "record"]
