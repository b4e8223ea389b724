"""A page of memory in which a process tells others what its allocators hold: for `bigmem top`.

The page is a memory file. It has no name in any folder, so that nobody else can reach it, and
nothing is left of it when the process ends, however that comes about. Those who may look into the
process, its own user and root, find it among the process's open files, below ``/proc``.
"""

from __future__ import annotations

import atexit
import json
import logging
import mmap
import os
import threading
import zlib
from contextlib import suppress
from functools import partial
from typing import Any

from bigmem import _core
from bigmem.allocator import open_allocators
from bigmem.exporters.snapshot import held
from bigmem.exporters.unseen import UnseenThread

VARIABLE = "BIGMEM_TOP"
"""Processes with this in their environment publish from the import of bigmem on."""
NAME = "bigmem-top"
"""Of the memory file."""
SIZE = 64 << 10
_SECONDS = 0.25
# A fork or an exit waits no longer for a stats() that hangs.
_PATIENCE = 0.25
_MOST_ALLOCATORS = 48
_MOST_ERRORS = 8
_LONGEST_NAME = 64
_LONGEST_ERROR = 120


class Page:
    """The writer's side: a mapping, so that a program that closes the file harms nobody's."""

    def __init__(self, file: int) -> None:
        os.ftruncate(file, SIZE)
        self._memory = mmap.mmap(file, SIZE)

    def write(self, content: Any) -> None:
        """Replace what the page holds by this, as JSON."""
        # A lone surrogate becomes an escape, as JSON has it.
        data = json.dumps(content, ensure_ascii=False).encode(errors="backslashreplace")
        assert len(data) < SIZE - 16, "it has been bounded"
        # The sum tells a reader that comes in the middle of this to look again.
        whole = b"%08x\n%s\n\0" % (zlib.crc32(data), data)
        self._memory[: len(whole)] = whole


class Sampler:
    """Writes a snapshot into a page now and then, from a thread of its own.

    The thread ends before a fork, and goes on in the parent afterwards, so that the child inherits
    nothing half done, and Python, which counts threads after a fork, finds none of ours.

    Parameters
    ----------
    page
        Where to.
    seconds
        From one snapshot to the next.
    only_allocators
        Whether to leave out further snapshots while there is no allocator.

    Attributes
    ----------
    sampled
        Set once the thread has written its first snapshot.
    """

    def __init__(
        self, page: Page, seconds: float = _SECONDS, *, only_allocators: bool = False
    ) -> None:
        self._page = page
        self._seconds = seconds
        self._only_allocators = only_allocators
        self.sampled = threading.Event()
        self._wake = threading.Event()
        self._thread: UnseenThread | None = None

    def start(self) -> None:
        """Begin, unless the thread runs already."""
        if self._thread is not None:
            return
        self._wake = threading.Event()
        self._thread = UnseenThread(partial(self._run, self._wake))
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter ends, or the process may have no more threads
            self._thread = None

    def stop(self) -> None:
        """End the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._wake.set()
            thread.join(_PATIENCE)

    def sample(self) -> None:
        """Write one snapshot; if there is none, what was raised is told in its place."""
        try:
            # Opens nothing: a program that closes all descriptors would close that too, and we then
            # one of its own. The reader looks up what the process has in memory.
            content = held()
            content["allocators"] = _bounded(content["allocators"])
            content["errors"] = {
                name[:_LONGEST_NAME]: told[:_LONGEST_ERROR]
                for name, told in list(content["errors"].items())[:_MOST_ERRORS]
            }
            self._page.write(content)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
            self._page.write({"process": os.getpid(), "error": told})

    def _run(self, wake: threading.Event) -> None:
        self.sample()
        self.sampled.set()
        while not wake.wait(self._seconds):
            if open_allocators() or not self._only_allocators:
                self.sample()


def publish() -> None:
    """Let `bigmem top` see this process, and the children that it forks, until they end."""
    try:
        _Publication().begin()
    except OSError as error:
        # The program that imports bigmem is not to fail of it.
        logging.getLogger("bigmem").warning("bigmem top cannot see this process: %s", error)


class _Publication:
    """The sampler of this process; a child of fork gets one with a page of its own."""

    def __init__(self) -> None:
        self._sampler = Sampler(_new_page())

    def begin(self) -> None:
        self._sampler.start()
        atexit.register(self._stop)
        os.register_at_fork(
            before=self._stop,
            # No Python function: the core asks which code forks.
            after_in_parent=partial(_core.call_after_fork, self._start),
            after_in_child=self._become_child,
        )

    def _start(self) -> None:
        self._sampler.start()

    def _stop(self) -> None:
        self._sampler.stop()

    def _become_child(self) -> None:
        with suppress(OSError):  # no more descriptors: this child is not seen
            self._sampler = Sampler(_new_page())
            _core.call_after_fork(self._start)


def follow(path: str, seconds: float) -> None:
    """Write snapshots into a file of another process's, but none of a child's."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        sampler = Sampler(Page(file), seconds, only_allocators=True)
    finally:
        os.close(file)
    sampler.start()
    sampler.sampled.wait(_PATIENCE)  # the first faults most, and the program's are to be counted
    atexit.register(sampler.stop)
    os.register_at_fork(
        before=sampler.stop, after_in_parent=partial(_core.call_after_fork, sampler.start)
    )


def _new_page() -> Page:
    file = os.memfd_create(NAME, os.MFD_CLOEXEC)
    try:
        return Page(file)  # whose mapping keeps a descriptor of its own
    finally:
        os.close(file)


def _bounded(allocators: dict[str, Any]) -> dict[str, Any]:
    """Those that hold most, by names of a bearable length; the total tells of the others."""
    largest = sorted(allocators.items(), key=lambda item: -item[1]["resident"])
    kept: dict[str, Any] = {}
    for name, figures in largest[:_MOST_ALLOCATORS]:
        # Names that begin alike become one: they are added up, as those of one name are.
        before = kept.get(name[:_LONGEST_NAME], dict.fromkeys(figures, 0))
        kept[name[:_LONGEST_NAME]] = {key: before[key] + figures[key] for key in figures}
    return kept
