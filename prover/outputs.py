"""Output files that appear whole or not at all."""

import os
import secrets
import signal
import stat
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from prover.errors import UnwritableOutput, UsageError


def check_targets(*targets: Path, inputs: Collection[Path] = ()) -> list[Path]:
    """Refuse early what `whole_files` would refuse after the work.

    Returns
    -------
    The places that the targets name, links followed.

    Raises
    ------
    UnwritableOutput, UsageError
    """
    places = [_resolve(target) for target in targets]
    if len(set(places)) < len(places):
        raise UsageError(f"{targets[0]}: two outputs have this name; give each its own")
    for target, place in zip(targets, places, strict=True):
        if place in inputs:
            raise UsageError(f"{target}: is an input; give the output another name")
        if not place.parent.is_dir():
            raise UnwritableOutput(target, "cannot be written: its folder does not exist")
        if not os.access(place.parent, os.W_OK | os.X_OK, effective_ids=True):
            raise UnwritableOutput(target, "cannot be written: no permission for its folder")
    return places


@contextmanager
def whole_files(*targets: Path, inputs: Collection[Path] = ()) -> Iterator[list[BinaryIO]]:
    """Open temporary files beside the targets; rename all of them when the block succeeds.

    If the block or a write raises, nothing is left and earlier files of these names stay as they
    were.

    Parameters
    ----------
    targets
        The files to make; an existing regular file is replaced.
    inputs
        Files that a target must not replace, links resolved.

    Yields
    ------
    One binary file for each target, open for writing.

    Raises
    ------
    UnwritableOutput
        No such directory, no permission, disk full and the like.
    UsageError
        Two targets are one file, or a target is an input.
    """
    places = check_targets(*targets, inputs=inputs)
    temporary = [place.with_name(f".prover-{secrets.token_hex(6)}.tmp") for place in places]
    with ExitStack() as cleanup:
        files: list[BinaryIO] = []
        for target, name in zip(targets, temporary, strict=True):
            # Registered first: an interrupt may come between any two lines.
            cleanup.callback(_remove, name)
            with _explained(target):
                files.append(name.open("xb"))
            cleanup.callback(_close_quietly, files[-1])
        # One target named for the errors of all: the disk that is full is usually the same.
        with _explained(targets[0]):
            yield files
        for target, file in zip(targets, files, strict=True):
            with _explained(target):
                file.close()
        with _held_back_signals():
            _rename(targets, temporary, places)


def _rename(targets: tuple[Path, ...], temporary: list[Path], places: list[Path]) -> None:
    renamed: list[Path] = []
    try:
        for target, name, place in zip(targets, temporary, places, strict=True):
            with _explained(target):
                name.replace(place)
            renamed.append(place)
    except BaseException:
        for place in renamed:
            _remove(place)
        raise


@contextmanager
def _held_back_signals() -> Iterator[None]:
    """Let what would end the program wait until the block has ended: all files or none."""
    held: list[int] = []

    def hold(number: int, _: FrameType | None) -> None:
        held.append(number)

    # Python handles signals in the main thread only.
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
    earlier = {int(n): signal.signal(n, hold) for n in numbers if callable(signal.getsignal(n))}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        for number in held:
            signal.raise_signal(number)


def _resolve(target: Path) -> Path:
    with _explained(target):
        try:
            place = target.resolve()
        except (RuntimeError, ValueError) as error:  # a loop of links, a null byte
            raise UnwritableOutput(target, f"cannot be written: {error}") from None
        if place.is_dir():
            raise UnwritableOutput(target, "is a directory, but a file is to be written")
        if place.exists() and not stat.S_ISREG(place.stat().st_mode):
            raise UnwritableOutput(target, "is no regular file, so that it cannot be replaced")
        return place


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UnwritableOutput(target, f"cannot be written: {reason}") from None


def _remove(name: Path) -> None:
    with suppress(OSError):
        name.unlink()


def _close_quietly(file: BinaryIO) -> None:
    # A file that could not be flushed (disk full) fails again when closed.
    with suppress(OSError):
        file.close()
