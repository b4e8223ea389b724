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
    options, _ = split(sys.orig_argv[1:])
    return [sys.executable, *options, *words], environment


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

        # As it is now: the program may have replaced itself by another.
        _, program = split(sys.orig_argv[1:])
        recorder.start(settings["profile"], program)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What follows the interpreter's name: its options, and the program as `command` takes it."""
    options: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word, taken = rest[0], 1
        if word == "--check-hash-based-pycs":
            taken = 2
        else:
            for index, letter in enumerate(word[1:], 1):
                if letter in "cm":  # the program; letters before it are options
                    options += [word[:index]] if index > 1 else []
                    glued = word[index + 1 :]
                    return options, [f"-{letter}", *([glued] if glued else []), *rest[1:]]
                if letter in "WX":  # takes the rest of the word, or the next one
                    taken = 1 if word[index + 1 :] else 2
                    break
        options += rest[:taken]
        del rest[:taken]
    return options, rest[1:] if rest[:1] == ["--"] else rest
