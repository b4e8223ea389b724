"""The pinned allocators that bigmem makes for itself, one a device."""

from __future__ import annotations

from .driver import loaded
from .pinned import PinnedAllocator

_made: dict[int, PinnedAllocator] = {}


def default_allocator(device: int | None = None, stream: int = 0) -> PinnedAllocator:
    """The one of a device, or else of a stream's, which is kept for next time."""
    number = loaded().driver.device_of(stream) or 0 if device is None else device
    found = _made.get(number)
    if found is None or found._closed:
        # Should two threads come here at once, one of theirs goes again, unused.
        found = _made[number] = PinnedAllocator(number, name=f"pinned for device {number}")
    return found
