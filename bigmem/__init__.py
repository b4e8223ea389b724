"""Pluggable deferred and recycling allocators for huge arrays."""

import os
import sys

if sys.platform != "linux":
    raise ImportError(f"bigmem runs on Linux only (this is {sys.platform})")

from ._core import Block
from .allocator import Allocator, AllocatorStats
from .arena.arena import ArenaAllocator
from .arena.pages import AnonymousPages
from .arrays import empty, empty_like, full, full_like, ones, ones_like, zeros, zeros_like
from .budget import Budget
from .errors import BigmemError, InvalidRelease, OutOfMemory
from .layers import LayerTimes, LayerTree, layer, layers, record_layers
from .live import LiveBlock, live_blocks
from .mapped import MappedAllocator
from .numpy_hook import install, uninstall, use
from .reclaim import ReclaimPool
from .registry import flush, get_allocator, make, set_allocator, stats, trim
from .release import Deferred, Inline, Recycle
from .system import SystemAllocator
from .wrappers import Guarded, Limited, Traced

__all__ = [
    "Allocator",
    "AllocatorStats",
    "AnonymousPages",
    "ArenaAllocator",
    "BigmemError",
    "Block",
    "Budget",
    "Deferred",
    "Guarded",
    "Inline",
    "InvalidRelease",
    "LayerTimes",
    "LayerTree",
    "Limited",
    "LiveBlock",
    "MappedAllocator",
    "OutOfMemory",
    "ReclaimPool",
    "Recycle",
    "SystemAllocator",
    "Traced",
    "empty",
    "empty_like",
    "flush",
    "full",
    "full_like",
    "get_allocator",
    "install",
    "layer",
    "layers",
    "live_blocks",
    "make",
    "ones",
    "ones_like",
    "record_layers",
    "set_allocator",
    "stats",
    "trim",
    "uninstall",
    "use",
    "zeros",
    "zeros_like",
]

if os.environ.get("BIGMEM_TOP", "0") not in ("", "0"):
    from .exporters.page import publish as _publish

    _publish()
