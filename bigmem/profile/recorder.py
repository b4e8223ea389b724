"""The profiler inside the profiled program: it starts the ledger once NumPy has been imported."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from bigmem import _core, numpy_hook
from bigmem.layers import layers, observe
from bigmem.numpy_hook import new_threads

_MACHINERY, _LIBRARY, _PROGRAM = range(3)
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


def start(settings: Settings) -> None:
    """Keep the ledger of this process, if it is the one that was started to be profiled.

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
    _core.start_ledger(settings["path"], settings["events"], list(_prefixes()))
    if not covers_all:
        new_threads.cover()
    observe(_core.note_layer)
    process = os.getpid()
    atexit.register(lambda: _leave_layers(settings["path"], process))


def _prefixes() -> Iterator[tuple[str, int]]:
    """Where code comes from, by how its file's name begins."""
    for package in (np, sys.modules["bigmem"]):
        yield from _folder(Path(package.__file__ or "").parent, _MACHINERY)
    yield "<__array_function__", _MACHINERY
    yield "<frozen ", _LIBRARY
    scheme = sysconfig.get_paths()
    folders = {scheme[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    folders.update(site.getsitepackages(), [site.getusersitepackages()])
    for folder in folders:
        yield from _folder(Path(folder), _LIBRARY)
    # What `-m` runs is the program, wherever it is installed.
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) and main.__file__:
        yield main.__file__, _PROGRAM
        top = sys.modules.get((main.__package__ or "").partition(".")[0])
        if top and top.__file__:
            yield from _folder(Path(top.__file__).parent, _PROGRAM)


def _folder(folder: Path, origin: int) -> Iterator[tuple[str, int]]:
    for name in {folder, folder.resolve()}:
        if str(name).isprintable():  # one that is no UTF-8 names no source file either
            yield f"{name}{os.sep}", origin


def _leave_layers(path: str, process: int) -> None:
    tree = layers()
    if os.getpid() != process or not tree.layers:
        return
    text = json.dumps(dataclasses.asdict(tree))
    with suppress(OSError), Path(path).open("ab") as file:
        file.write(text.encode())
