"""A thread in a process of others', which the program can neither see nor disturb."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path


class UnseenThread:
    """A thread that `threading` does not know of, and that no signal is delivered to.

    A program may join every thread that it sees, and wait for signals that it has blocked in all of
    its own: neither must come to depend on ours.

    Parameters
    ----------
    run
        What it does, which must not raise.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._ended = threading.Event()
        self._task = Path()

    def start(self) -> None:
        """Begin; like a daemon, it does not keep the process from ending.

        Raises
        ------
        RuntimeError
            The interpreter ends, or the process may have no more threads.
        """
        # Before anything is blocked: setting the mask runs handlers of signals that have come,
        # which may raise.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            _thread.start_new_thread(self._begin, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def join(self, seconds: float) -> None:
        """Wait for its end, no longer than this."""
        deadline = time.monotonic() + seconds
        if not self._ended.wait(seconds):
            return
        # Nearly: from Python 3.12 on, a fork makes the kernel count threads and warns of any.
        while self._task.exists() and time.monotonic() < deadline:
            time.sleep(50e-6)

    def _begin(self) -> None:
        self._task = Path(f"/proc/self/task/{threading.get_native_id()}")
        try:
            self._run()
        finally:
            self._ended.set()
