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
from types import FrameType

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
    with _passing_signals_on() as pass_on_to:
        begin = time.monotonic()
        process = os.posix_spawn(words[0], words, environment, setsigdef=_DEFAULTS)
        pass_on_to(process)
        if watch is not None:
            _watch(process, watch)
        _, status, usage = os.wait4(process, 0)
        return Ended(process, begin, time.monotonic(), status, usage.ru_minflt)


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


def _watch(process: int, watch: Callable[[int], object]) -> None:
    try:
        descriptor = os.pidfd_open(process)
    except OSError:  # an old kernel, or a sandbox: the program is not watched, then
        return
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        while not ended.poll(_WATCH_MS):
            watch(process)
    finally:
        os.close(descriptor)


@contextmanager
def _passing_signals_on() -> Iterator[Callable[[int], None]]:
    """Pass signals on, from the first on: those that come early once the receiver is known."""
    receiver: list[int] = []
    early: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if not receiver:
            early.append(number)
        elif not (number in (signal.SIGINT, signal.SIGQUIT) and _at_the_terminal()):
            os.kill(receiver[0], number)

    def pass_on_to(process: int) -> None:
        receiver.append(process)
        while early:
            pass_on(early.pop(0), None)

    # Those that are ignored (nohup) are ignored by the program too.
    handled = [n for n in _PASSED_ON if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, pass_on) for n in handled}
    try:
        yield pass_on_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
