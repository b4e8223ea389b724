"""The hook in threads that start from now on: for NumPys whose default handler cannot be edited.

A new thread begins with an empty context, and so with NumPy's default handler, unless it is told
otherwise before its own code runs.
"""

import threading
from typing import Any

from .. import _core

_start: Any = None  # Thread.start, while it is wrapped


def cover() -> None:
    """Put our functions into this context, and into that of every thread started later."""
    global _start
    _core.numpy_set(_core.numpy_floating())
    if _start is None:
        _start = threading.Thread.start
        threading.Thread.start = _start_covered  # type: ignore[method-assign, assignment]


def uncover() -> None:
    """Start threads as before. Contexts that have our functions keep them: they pass all on."""
    global _start
    if _start is not None and threading.Thread.start is _start_covered:
        threading.Thread.start = _start  # type: ignore[method-assign]
        _start = None


def _start_covered(thread: threading.Thread) -> None:
    run = thread.run

    def run_covered() -> None:
        del thread.run  # or the thread would refer to itself
        _core.numpy_set(_core.numpy_floating())
        run()

    thread.run = run_covered  # type: ignore[method-assign]
    try:
        (_start or threading.Thread.start)(thread)
    except BaseException:
        del thread.run
        raise
