"""A program under bigmem: a plain Python that imports our ``sitecustomize`` when it starts.

It is started by the parent with `command`. `begin` is called inside it, and inside every Python
that it starts in turn, as soon as NumPy has been imported.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bigmem
from bigmem.cli._allocator import allocator_named

STARTUP = Path(__file__).resolve().parent / "startup"
VARIABLE = "BIGMEM_STARTUP"


def command(words: Sequence[str], config: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """How to start a program with bigmem in it.

    Parameters
    ----------
    words
        The program as Python takes it: a script, ``-m`` and a module, ``-c`` and code, or ``-``;
        then its own arguments.
    config
        What `begin` is to do there; representable in JSON.

    Returns
    -------
    The words of the command, which begin with the interpreter, and its environment.

    Raises
    ------
    BigmemError
        This interpreter was told to ignore its environment or `site`, or bigmem lies where
        PYTHONPATH cannot lead.
    """
    if sys.flags.isolated or sys.flags.ignore_environment or sys.flags.no_site:
        raise bigmem.BigmemError("python's options -I, -E and -S keep bigmem out of the program")
    if os.pathsep in str(STARTUP):
        raise bigmem.BigmemError(f"{STARTUP}: PYTHONPATH cannot hold a path with {os.pathsep!r}")
    theirs = os.environ.get("PYTHONPATH", "")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{STARTUP}{os.pathsep}{theirs}" if theirs else str(STARTUP),
        VARIABLE: json.dumps(config),
    }
    return [sys.executable, *_interpreter_options(sys.orig_argv[1:]), *words], environment


def begin(config: str) -> None:
    """Do in this program, which has imported NumPy, what its starter asked for.

    Parameters
    ----------
    config
        The value of `VARIABLE`.
    """
    settings = json.loads(config)
    if "allocator" in settings:
        allocator = allocator_named(settings["allocator"])
        if "trace" in settings and settings["trace"]["process"] == os.getpid():
            allocator = bigmem.Traced(allocator, settings["trace"]["path"], touched=True)
        # The program's own calls of bigmem share it.
        bigmem.set_allocator(allocator)
        bigmem.install(allocator)
    if "profile" in settings:
        from bigmem.profile import recorder

        recorder.start(settings["profile"])


def _interpreter_options(words: Sequence[str]) -> list[str]:
    """Those that come before the program, among the words after the interpreter's name."""
    options: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--check-hash-based-pycs":
            options += [word, next(rest)]
            continue
        if not word.startswith("-") or word in ("-", "--"):
            break
        for index, letter in enumerate(word[1:], 1):
            if letter in "cm":  # the program; letters before it are options
                return options + ([word[:index]] if index > 1 else [])
            if letter in "WX":  # takes the rest of the word, or the next one
                options += [word] if word[index + 1 :] else [word, next(rest)]
                break
        else:
            options.append(word)
    return options
