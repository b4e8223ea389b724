"""Pluggable deferred allocators for huge arrays."""
