"""Saying what takes long before it has ended."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from bigmem.cli._command import tell
from bigmem.terminal import can_draw

Notify = Callable[[str], None]
"""Told one line at a time."""

_PATIENCE_S = 1.0
"""What is found in the cache on disk takes less."""


def notify(line: str) -> None:
    """Tell on stderr what is under way; dim on a terminal where rich is installed."""
    if not can_draw(sys.stderr):
        tell(f"{line}\n")
        return
    from rich.console import Console

    Console(stderr=True).print(line, style="dim", markup=False, highlight=False)


@contextmanager
def announced(what: str, notify: Notify | None, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Tell that ``what`` is being compiled if that lasts, and at the end how long it took.

    Nothing is told of what is ready within ``patience_s`` seconds.
    """
    if notify is None:
        yield
        return
    notice = f"compiling {what}; once for this machine, CuPy keeps the result"
    timer = Timer(patience_s, notify, [notice])
    timer.daemon = True
    start = time.perf_counter()
    with suppress(RuntimeError):  # where no thread can be started, only the end is told
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
    seconds = time.perf_counter() - start
    if seconds > patience_s:
        notify(f"compiled {what} in {seconds:.1f} s")
