"""Whose code a file holds, by how its name begins: the program's, a library's, or NumPy's and ours.

What the program is is taken from its command line: when NumPy is imported, Python may not have come
to running it yet.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

_MACHINERY, _LIBRARY, _PROGRAM = range(3)


def origins(program: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Beginnings of names, of which the longest holds, with the number of an origin each.

    Parameters
    ----------
    program
        As `bigmem.cli._launch.command` takes it.
    """
    for package in (np, sys.modules["bigmem"]):
        yield from _folder(Path(package.__file__ or "").parent, _MACHINERY)
    yield "<__array_function__", _MACHINERY
    yield "<frozen ", _LIBRARY
    scheme = sysconfig.get_paths()
    folders = {scheme[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    folders.update(site.getsitepackages(), [site.getusersitepackages()])
    for folder in folders:
        yield from _folder(Path(folder), _LIBRARY)
    # The program is the program wherever it lies.
    match list(program[:2]):
        case ["-m", module]:
            yield from _package(module)
        case [script, *_] if script not in ("-m", "-c", "-"):
            yield from _script(script)


def _script(script: str) -> Iterator[tuple[str, int]]:
    file = Path(script).absolute()
    yield str(file), _PROGRAM
    # The program may have gone elsewhere since it was started by a relative path.
    if running := getattr(sys.modules["__main__"], "__file__", None):
        yield running, _PROGRAM
        file = Path(running)
        if file.name == "__main__.py":  # of a folder or an archive
            yield from _folder(file.parent, _PROGRAM)
    yield from _package(_called_by(file))


def _called_by(script: Path) -> str:
    """The module that a command calls which pip has made; nothing of any other script."""
    user = sysconfig.get_preferred_scheme("user")
    folders = {sysconfig.get_path("scripts"), sysconfig.get_path("scripts", user)}
    if script.parent.resolve() not in {Path(folder).resolve() for folder in folders}:
        return ""
    from importlib.metadata import entry_points

    commands = entry_points(group="console_scripts", name=script.name)
    return next((command.module for command in commands), "")


def _package(module: str) -> Iterator[tuple[str, int]]:
    """Where the package lies that a module is in, or is itself."""
    top = module.partition(".")[0]
    if top in ("", np.__name__, "bigmem"):
        return
    found = None
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(top)
    if found is None:
        return
    for folder in found.submodule_search_locations or ():
        yield from _folder(Path(folder), _PROGRAM)
    if found.origin is not None:
        yield found.origin, _PROGRAM


def _folder(folder: Path, origin: int) -> Iterator[tuple[str, int]]:
    for name in {folder, folder.resolve()}:
        yield f"{name}{os.sep}", origin
