"""Pinned memory: `PinnedAllocator`, fences on a GPU's work, and what libraries need of them.

Importing this calls no function of CUDA and imports no library that does; the first
`PinnedAllocator`, or the first `record`, finds the driver.
"""

from .captures import capturing
from .cupy_hook import install_cupy, uninstall_cupy
from .fences import record
from .pinned import PinnedAllocator
from .upload import Uploads, upload

__all__ = [
    "PinnedAllocator",
    "Uploads",
    "capturing",
    "install_cupy",
    "record",
    "uninstall_cupy",
    "upload",
]
