"""Synthesis ahead of the proofs, on a thread of its own, within a budget of bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType

import bigmem
from prover.pipeline.assignment import Assignment

Make = Callable[[int, Callable[[int], None]], Assignment]
"""Makes the assignment of a number, which is to say what bytes of it have been released."""

Settle = Callable[[float], bool]
"""Waits until what has been released can be used again or is given back; at most so many seconds,
and False if that was not enough."""

_PATIENCE = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""How long the synthesis waits there at a time: others may use the same allocator, and what they
release meanwhile counts in the next wait, but not in this one. After the last it goes on all the
same, as it might wait for ever for what others never give back."""


class Ahead:
    """Assignments 1 to ``count`` in order; a context in which they are made.

    What lives at any time, those that are being proved and those that were released but are not
    given back yet included, takes at most ``limit`` bytes. An error of ``make`` or ``settle`` is
    raised by `next` in place of the assignment, after all before it.

    Parameters
    ----------
    make
        Called on the thread of this object.
    settle
        Called there before each, to wait for what was released.
    each
        Bytes of an assignment, at most ``limit``.

    Raises
    ------
    MemoryError
        On entry, if the system gives no thread.
    """

    def __init__(self, make: Make, settle: Settle, count: int, *, each: int, limit: int) -> None:
        if each > limit:
            raise ValueError("the limit is below one assignment")
        self._make = make
        self._settle = settle
        self._count = count
        self._each = each
        self._free = limit
        self._ready: deque[tuple[int, Assignment | BaseException]] = deque()
        self._changed = threading.Condition()
        self._made_all = False
        self._stopped = False
        # A copy of the context: the layers of this thread belong to who has made it.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="prover synthesis"
        )

    def __enter__(self) -> Ahead:
        try:
            self._thread.start()
        except RuntimeError as error:
            raise MemoryError(f"no thread for the synthesis: {error}") from None
        except BaseException:
            self._end()  # it may have begun, and nobody will leave this context
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def next(self) -> tuple[int, Assignment] | None:
        """The next assignment with its number; None after the last one, and after `stop`."""
        with self._changed:
            while not (self._ready or self._made_all or self._stopped):
                self._changed.wait()
            if self._stopped or not self._ready:
                return None
            number, made = self._ready.popleft()
        if isinstance(made, BaseException):
            self.stop()
            raise made
        return number, made

    def stop(self) -> None:
        """Make no more, and let nobody wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _end(self) -> None:
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        while self._ready:
            _, made = self._ready.popleft()
            if isinstance(made, Assignment):
                made.release()

    def _run(self) -> None:
        with bigmem.layer("ahead"):
            for number in range(1, self._count + 1):
                made: Assignment | BaseException
                try:
                    with bigmem.layer("wait"):
                        if not (self._take() and self._settled()):
                            return
                    made = self._make(number, self._give)
                except BaseException as error:
                    made = error
                with self._changed:
                    self._ready.append((number, made))
                    self._changed.notify_all()
                if isinstance(made, BaseException):
                    return
                del made
        with self._changed:
            self._made_all = True
            self._changed.notify_all()

    def _take(self) -> bool:
        """Wait for the bytes of one assignment; False if it is not wanted any more."""
        with self._changed:
            while self._free < self._each and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return False
            self._free -= self._each
            return True

    def _settled(self) -> bool:
        """Wait until what was taken is there; False if it is not wanted any more."""
        with bigmem.layer("give back"):  # the allocator may do so on this thread
            for seconds in _PATIENCE:
                if self._stopped or self._settle(seconds):
                    break
        return not self._stopped

    def _give(self, nbytes: int) -> None:
        with self._changed:
            self._free += nbytes
            self._changed.notify_all()
