"""What can go wrong with what a user hands to the prover.

Every error is one line that names the file, what is wrong and, where it is not obvious, what to
do, and carries the exit code of the command line.
"""

import os
from typing import ClassVar


class ProverError(Exception):
    """Base of every error that is the input's or the machine's, not the prover's."""

    exit_code: ClassVar[int] = 2


class FileError(ProverError):
    """Something is wrong with one file.

    Parameters
    ----------
    path
        The file, as the user named it.
    problem
        What is wrong, without the path.
    """

    def __init__(self, path: str | os.PathLike[str], problem: str) -> None:
        super().__init__(f"{os.fspath(path)}: {problem}")


class UnreadableFile(FileError):
    """The file cannot be read at all: missing, no permission, a directory, a device."""


class MalformedFile(FileError):
    """The file breaks its format: truncated, inconsistent, or with values out of range."""


class UnsupportedFile(FileError):
    """The file is well formed as far as can be told, but not for this prover."""


class UnwritableOutput(FileError):
    """An output cannot be written; nothing of it is left behind."""


class MismatchedFiles(ProverError):
    """Files that are fine on their own do not belong together."""


class UnsatisfiedCircuit(ProverError):
    """The witness does not satisfy the circuit, so that no valid proof comes of it."""


class UnavailableBackend(ProverError):
    """The backend asked for does not exist or cannot run on this machine."""


class OutOfDeviceMemory(ProverError):
    """A proof does not fit in the memory of the GPU, however little of the key is kept there."""


class UsageError(ProverError):
    """The command line asks for something that makes no sense."""


def reason_of(error: OSError) -> str:
    """Why the system refused, as the end of a line."""
    return (error.strerror or str(error)).lower()
