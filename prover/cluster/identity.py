"""Which key is meant, on machines whose files are not the same."""

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

from prover.errors import MismatchedFiles, UnreadableFile


@dataclass(frozen=True)
class KeyIdentity:
    """A key, by its content.

    Attributes
    ----------
    name
        The file, as the user named it; errors about its content say so.
    path
        The same, absolute.
    nbytes
        Its size.
    sha256
        Of its content, in hexadecimal.
    """

    name: str
    path: str
    nbytes: int
    sha256: str

    @classmethod
    def of(cls, name: str) -> Self:
        """Read a file through.

        Raises
        ------
        UnreadableFile
        """
        path = Path(name).absolute()
        try:
            return cls(name, str(path), path.stat().st_size, _sha256(path))
        except OSError as error:
            raise UnreadableFile(name, f"cannot be read: {_reason(error)}") from None

    def find(self, folder: str | None = None) -> Path:
        """A file on this machine with the same content.

        Parameters
        ----------
        folder
            Where any ``.zkey`` file may be it, besides the file of the same path.

        Raises
        ------
        MismatchedFiles
            There is none; the message says what there is instead.
        """
        there = [Path(self.path)]
        if folder is not None:
            there += sorted(Path(folder).glob("*.zkey"))
        found = []
        for path in there:
            try:
                # The size first: reading the wrong files of a full folder would take long.
                if path.stat().st_size == self.nbytes and _sha256(path) == self.sha256:
                    return path
                found.append(str(path))
            except OSError:
                continue
        others = f"; other keys are {', '.join(found)}" if found else ""
        places = self.path if folder is None else f"{self.path} or {folder}/*.zkey"
        raise MismatchedFiles(
            f"no key with the SHA-256 {self.sha256} at {places}{others}; copy the key there"
        )


def _sha256(path: Path) -> str:
    status = path.stat()
    return _sha256_of(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache
def _sha256_of(path: Path, inode: int, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
