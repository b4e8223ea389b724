"""The profiler inside the profiled program: it starts the ledger once NumPy has been imported."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NotRequired, TypedDict

from bigmem import _core, numpy_hook
from bigmem.layers import layers, observe
from bigmem.numpy_hook import new_threads
from bigmem.profile.origins import origins

_PAGE_SECONDS = 0.02


class Settings(TypedDict):
    """What the profiler tells the program's process.

    `path` is the file for the ledger, which exists; `parent` the number of the process that
    profiles; `events` how many events to keep; `page` a file for what bigmem's allocators hold.
    """

    path: str
    parent: int
    events: int
    page: NotRequired[str]


def start(settings: Settings, program: Sequence[str]) -> None:
    """Keep the ledger of this process, if it is the one that was started to be profiled.

    Parameters
    ----------
    settings
        What there is to do.
    program
        As `bigmem.cli._launch.command` takes it.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    if os.getppid() != settings["parent"]:
        return  # a child of the program, which has inherited the settings
    # Before the ledger counts the faults of the program.
    covers_all = numpy_hook.mechanism() == "default handler"
    if "page" in settings:
        from bigmem.exporters import page

        page.follow(settings["page"], _PAGE_SECONDS)
    # Names of files that are no UTF-8 as the ledger has them.
    named = [(name.encode("utf-8", "surrogatepass"), origin) for name, origin in origins(program)]
    _core.start_ledger(settings["path"], settings["events"], named)
    if not covers_all:
        new_threads.cover()
    observe(_core.note_layer)
    process = os.getpid()
    atexit.register(lambda: _leave_layers(settings["path"], process))


def _leave_layers(path: str, process: int) -> None:
    tree = layers()
    if os.getpid() != process or not tree.layers:
        return
    text = json.dumps(dataclasses.asdict(tree))
    with suppress(OSError), Path(path).open("ab") as file:
        file.write(text.encode())
