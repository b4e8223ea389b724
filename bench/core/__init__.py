"""The figures of the allocator core, `make bench-core`: one module a kind of figure."""
