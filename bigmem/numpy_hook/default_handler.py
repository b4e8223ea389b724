"""Our functions in NumPy's default handler: the one way to reach threads that run already.

NumPy does not promise that its default handler can be edited. So it is looked at first, and tried
out; where anything is not as expected NumPy is left as it was.
"""

import contextvars
from functools import cache

import numpy as np

from .. import _core, osmem
from ..system import SystemAllocator

# The layout that the core was built for, as the handler itself states it.
_NAME, _VERSION = "default_allocator", 1
_PROBE_BYTES = 1 << 16


@cache
def edited() -> bool:
    """Whether the default handler consists of our functions, which it does from the first call on.

    They pass everything on to NumPy's own until an allocator is installed, and are never taken out
    again: an array of ours may outlive `uninstall`.
    """
    name, version, address = _core.numpy_default()
    known = name == _NAME and version == _VERSION and np.__version__.startswith(("1.", "2."))
    if not known or not osmem.is_writable(address):
        return False
    _core.numpy_edit(True)
    if not _reached():
        _core.numpy_edit(False)
        return False
    return True


def _reached() -> bool:
    """Whether what NumPy makes under its default handler comes from what is installed."""
    probe = SystemAllocator(name="probe")
    _core.numpy_install(probe, None, _PROBE_BYTES, _PROBE_BYTES)
    try:
        # In an empty context nobody has chosen another handler.
        array = contextvars.Context().run(np.empty, _PROBE_BYTES, np.uint8)
        made = probe.stats().allocations
        del array
        return 0 < made <= probe.stats().releases
    finally:
        _core.numpy_install()
        probe.close()
