"""What another process tells of its allocators in its page (see `bigmem.exporters.page`)."""

from __future__ import annotations

import json
import os
import select
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, cast

from bigmem import osmem
from bigmem.errors import BigmemError
from bigmem.exporters.page import NAME, SIZE, VARIABLE
from bigmem.exporters.snapshot import Snapshot
from bigmem.terminal import one_line

_LINK = f"/memfd:{NAME} (deleted)"
# A process that has just begun has this long to write its first snapshot.
_PATIENCE = 2.0
_PAUSE = 0.01
_Figures = dict[str, Any]


class Watched:
    """Another process that publishes: a context that ends with `close`.

    Raises
    ------
    BigmemError
        From the constructor if there is no such process, it is another user's, or it does not
        publish.
    """

    def __init__(self, process: int) -> None:
        self.process = process
        try:
            # Refers to this process alone, also when it is gone and its number another's.
            self._handle = os.pidfd_open(process)
        except (OSError, OverflowError) as error:
            raise BigmemError(f"there is no process {process}") from error
        try:
            self._page = self._find()
        except BaseException:
            os.close(self._handle)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the process."""
        os.close(self._page)
        os.close(self._handle)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return not select.select([self._handle], [], [], 0)[0]

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the process ends; whether it still runs."""
        return not select.select([self._handle], [], [], seconds)[0]

    def read(self) -> Snapshot:
        """The latest snapshot.

        Raises
        ------
        BigmemError
            The process could not make one, and why.
        """
        deadline = time.monotonic() + _PATIENCE
        while (content := content_of(self._page)) is None:
            if time.monotonic() >= deadline or not self.wait(_PAUSE):
                raise BigmemError(f"process {self.process} has written nothing yet")
        if "error" in content:
            told = one_line(str(content["error"]))
            raise BigmemError(f"process {self.process} cannot tell its figures: {told}")
        if not is_snapshot(content):
            raise BigmemError(f"process {self.process} publishes what this bigmem cannot read")
        content["resident"] = self.resident() or 0
        content.setdefault("errors", {})  # which an older bigmem did not tell
        return cast(Snapshot, content)

    def resident(self) -> int | None:
        """Bytes of the process in memory now; `None` once it has ended."""
        return osmem.resident_bytes_of(self.process)

    def _find(self) -> int:
        # The number that the process has in its own eyes: a container has numbers of its own.
        own = _innermost_number(self.process)
        try:
            for file in _pages(self.process):
                content = content_of(file)
                # One that it has inherited by a fork tells of its parent.
                if content is None or content.get("process") == own:
                    return file
                os.close(file)
        except PermissionError:
            raise BigmemError(f"process {self.process} is another user's, or protected") from None
        except OSError as error:
            raise BigmemError(f"process {self.process} has ended") from error
        if not self.alive():  # and its parent has not asked how: it has a number still
            raise BigmemError(f"process {self.process} has ended")
        raise BigmemError(
            f"process {self.process} publishes nothing: start it with {VARIABLE}=1 in its "
            "environment, and bigmem imported in it (or under `bigmem run`)"
        )


def _pages(process: int) -> Iterator[int]:
    """Its pages, open for reading."""
    folder = Path(f"/proc/{process}/fd")
    for entry in sorted(folder.iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile
            if entry.readlink() == Path(_LINK):
                yield os.open(entry, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _innermost_number(process: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return process


def content_of(file: int) -> _Figures | None:
    """What stands in a page that is open for reading, if it is whole."""
    check, _, rest = os.pread(file, SIZE, 0).partition(b"\n")
    data = rest.partition(b"\n")[0]
    if check != b"%08x" % zlib.crc32(data):
        return None
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def is_snapshot(content: Mapping[str, Any]) -> bool:
    """Whether all is there that `held` tells, and of the right kind."""
    numbers = all(_is_number(content.get(key)) for key in ("time", "monotonic"))
    allocators, errors = content.get("allocators"), content.get("errors", {})
    return (
        numbers
        and _is_number(content.get("resident", 0))
        and _are_figures(content.get("total"))
        and isinstance(allocators, dict)
        and all(_are_figures(figures) for figures in allocators.values())
        and isinstance(errors, dict)
        and all(isinstance(told, str) for told in errors.values())
    )


def _are_figures(figures: object) -> bool:
    return isinstance(figures, dict) and all(_is_number(one) for one in figures.values())


def _is_number(value: object) -> bool:
    # A float can hold it: no infinity, no NaN, and no integer beyond, which JSON has as well.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(cast(float, value)) <= sys.float_info.max
