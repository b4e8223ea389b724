"""Output files that are checked before the work and appear whole after it."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from bigmem.errors import BigmemError


def check(targets: Sequence[Path]) -> None:
    """Refuse what `write` would refuse, and two for one file; whatever is there stays as it is.

    Raises
    ------
    BigmemError
        It is a directory, its folder does not exist, no permission and the like.
    """
    files: set[Path] = set()
    for target in targets:
        file = _check_one(target)
        if file in files:
            raise BigmemError(f"{target}: two outputs cannot go to one file")
        if file is not None:
            files.add(file)


def _check_one(target: Path) -> Path | None:
    """The ordinary file that it names, if it does."""
    try:
        if target.is_dir():
            raise BigmemError(f"{target}: is a directory, but a file is to be written")
        if target.exists() and not os.access(target, os.W_OK):
            raise BigmemError(f"{target}: cannot be written: permission denied")
        if not is_replaceable(target):
            return None
        trial = _beside(target)
        trial.touch(exist_ok=False)
        trial.unlink()
        return target.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise _refusal(target, error) from None


def write(target: Path, pieces: Iterable[bytes]) -> None:
    """Write a file, which takes the place of an earlier one when it is complete.

    Raises
    ------
    BigmemError
        It cannot be written; an earlier one stays as it was.
    """
    try:
        if not is_replaceable(target):
            # Appended: the program may have written there.
            with target.open("ab") as file:
                file.writelines(pieces)
            return
        temporary = _beside(target)
        try:
            with temporary.open("xb") as file:
                file.writelines(pieces)
            temporary.replace(target.resolve())
        finally:
            with suppress(OSError):
                temporary.unlink()
    except (OSError, RuntimeError, ValueError) as error:
        raise _refusal(target, error) from None


def is_replaceable(target: Path) -> bool:
    """Whether it is an ordinary file or none: not a pipe or a device, which is written to.

    Nor is a file that the shell has made our output: ``/dev/stdout`` by another name.
    """
    if not target.exists():
        return True
    there = target.stat()
    return stat.S_ISREG(there.st_mode) and not any(_is_open_as(there, number) for number in (1, 2))


def _is_open_as(there: os.stat_result, descriptor: int) -> bool:
    try:
        return os.path.samestat(there, os.fstat(descriptor))
    except OSError:  # it is closed
        return False


def _beside(target: Path) -> Path:
    return target.resolve().with_name(f".bigmem-{secrets.token_hex(6)}.tmp")


def _refusal(target: Path, error: Exception) -> BigmemError:
    reason = (
        os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else error
    )
    return BigmemError(f"{target}: cannot be written: {reason}")
