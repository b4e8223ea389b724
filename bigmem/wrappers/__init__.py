"""Allocators around an allocator: limits, traces and guards for whatever is below."""

from .base import Wrapper
from .guarded import Guarded
from .limited import Limited
from .traced import Traced

__all__ = ["Guarded", "Limited", "Traced", "Wrapper"]
