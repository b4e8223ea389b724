"""A program in a process of its own, whose signals and whose end are passed through."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

# What people and systems send to a program, and what may mean something to it.
_PASSED_ON = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# Those that Python itself ignores from its start, as no other program does.
_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ)
_WATCH_MS = 10


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended, and when.

    Attributes
    ----------
    process
        Its number.
    begin, end
        In seconds of the monotonic clock.
    status
        As `os.wait` has it.
    minor_faults
        Of the whole process.
    """

    process: int
    begin: float
    end: float
    status: int
    minor_faults: int


def run(
    words: list[str],
    environment: Mapping[str, str],
    watch: Callable[[int], object] | None = None,
) -> Ended:
    """Start a program, pass signals on to it, and wait until it ends.

    Parameters
    ----------
    words, environment
        The program's, the path of what is to be started first.
    watch
        Called with the program's number about a hundred times a second.

    Raises
    ------
    OSError
        It cannot be started.
    """
    with _hearing_signals() as signals:
        begin = time.monotonic()
        process = os.posix_spawn(words[0], words, environment, setsigdef=_DEFAULTS)
        while True:
            ended, status, usage = os.wait4(process, os.WNOHANG)
            if ended:
                return Ended(process, begin, time.monotonic(), status, usage.ru_minflt)
            if watch is not None:
                watch(process)
            for number in signals.heard(None if watch is None else _WATCH_MS):
                _pass_on(number, process)


def end_alike(status: int) -> int:
    """The exit code of a program, or the end by the same signal."""
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    # One core dump is enough.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _pass_on(number: int, process: int) -> None:
    by_a_key = number in (signal.SIGINT, signal.SIGQUIT) and _at_the_terminal()
    if number in _PASSED_ON and not by_a_key:
        os.kill(process, number)


class _Signals:
    """Signals that have come, by their numbers in a pipe.

    A handler in Python would do for most: but it runs only between two instructions, and a signal
    that comes after the last of them, just before a wait begins, would be heard when that ends.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._readable = select.poll()
        self._readable.register(pipe, select.POLLIN)

    def heard(self, milliseconds: int | None) -> bytes:
        """The numbers of those that have come; without any, of the first to come in this time."""
        return os.read(self._pipe, 64) if self._readable.poll(milliseconds) else b""


@contextmanager
def _hearing_signals() -> Iterator[_Signals]:
    """Hear the signals that are passed on, and that a child has ended, instead of obeying them."""
    # Those that are ignored (nohup) are ignored by the program too.
    heard = [n for n in _PASSED_ON if signal.getsignal(n) is not signal.SIG_IGN]
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    pipe_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {n: signal.signal(n, lambda *_: None) for n in (*heard, signal.SIGCHLD)}
    try:
        yield _Signals(reading)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(pipe_before)
        os.close(writing)
        os.close(reading)


def _at_the_terminal() -> bool:
    """Whether the keys of a terminal reach this process; they reach its children too then."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
