"""The arena: reserved address ranges, cut into extents."""
