"""Our functions in NumPy's default handler: the one way to reach threads that run already.

NumPy does not promise that its default handler can be edited. So it is looked at first, and tried
out; where anything is not as expected NumPy is left as it was.
"""

from functools import cache

import numpy as np

from .. import _core, osmem

# The layout that the core was built for, as the handler itself states it.
_NAME, _VERSION = "default_allocator", 1


@cache
def edited() -> bool:
    """Whether the default handler consists of our functions, which it does from the first call on.

    They pass everything on to NumPy's own until an allocator is installed, and are never taken out
    again: an array of ours may outlive `uninstall`.
    """
    name, version, address = _core.numpy_default()
    known = name == _NAME and version == _VERSION and np.__version__.startswith(("1.", "2."))
    return known and osmem.is_writable(address) and _core.numpy_edit()
