"""NumPy's own allocations, temporaries included, from an allocator of bigmem's (NEP 49)."""

from .hook import install, mechanism, uninstall, use

__all__ = ["install", "mechanism", "uninstall", "use"]
