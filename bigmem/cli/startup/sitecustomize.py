"""Lets bigmem into a program, and into every Python that the program starts.

`bigmem.cli._launch.command` puts the directory of this file first on PYTHONPATH, so that `site`
imports it wherever Python starts, also where Python is an older one or bigmem is not installed:
hence a syntax that every Python parses.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))

if (
    sys.version_info >= (3, 11)
    and "BIGMEM_STARTUP" in os.environ
    and "_bigmem_watch" not in sys.modules  # it is, where another bigmem started our starter
):
    from _bigmem_watch import watch  # type: ignore[import-not-found]  # it lies beside this file

    watch(os.environ["BIGMEM_STARTUP"])

# From here on the program finds what it would have found without us: first of all the module that
# this one stands in for, whose errors are then `site`'s to handle, its absence included.
sys.path[:] = [path for path in sys.path if path != _here]
sys.path_importer_cache.pop(_here, None)
_keep = sys.modules.pop(__name__)  # Python 2 would clear our globals with the module
__import__("sitecustomize")
