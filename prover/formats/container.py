"""The container that r1cs, wtns and zkey files share: a header, then sections in any order.

``magic[4] | version u32 | nSections u32 | { type u32, size u64, data }*``, little-endian. The file
is mapped, never read as a whole; sections are views.
"""

import errno
import mmap
import os
import stat
import struct
from typing import Self

import numpy as np
from numpy.typing import NDArray

from prover.errors import MalformedFile, UnreadableFile, UnsupportedFile

Bytes = NDArray[np.uint8]

_VERSIONS = {b"r1cs": 1, b"wtns": 2, b"zkey": 1}
_HEADER = struct.Struct("<4sII")
_SECTION = struct.Struct("<IQ")


class Container:
    """A mapped file, indexed by section.

    ``mmap`` rather than ``numpy.memmap``: the pages of a section can then be given back
    (`drop`) through a public call.
    """

    def __init__(self, path: str, mapping: mmap.mmap, size: int) -> None:
        self.path = path
        self._mapping = mapping
        self._bytes: Bytes = np.frombuffer(mapping, np.uint8, size)
        self.kind = self._check_header()
        self._sections = self._index()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map a file and index its sections.

        Raises
        ------
        UnreadableFile, MalformedFile, UnsupportedFile
        """
        name = os.fspath(path)
        try:
            # O_NONBLOCK: a named pipe without a writer must be refused, not waited for.
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise UnreadableFile(name, f"cannot be read: {_reason(error)}") from None
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise UnreadableFile(name, "is a directory, not a file")
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableFile(name, "is not a regular file, which is needed to map it")
            if status.st_size < _HEADER.size:
                raise MalformedFile(
                    name,
                    f"holds {status.st_size} bytes, too few for the header"
                    if status.st_size
                    else "is empty",
                )
            try:
                mapping = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
            except OSError as error:
                raise UnreadableFile(name, f"cannot be mapped: {_reason(error)}") from None
        finally:
            os.close(descriptor)
        return cls(name, mapping, status.st_size)

    def _check_header(self) -> str:
        magic, version, _ = _HEADER.unpack_from(self._mapping)
        if magic not in _VERSIONS:
            raise MalformedFile(self.path, "is no zkey, wtns or r1cs file (unknown magic bytes)")
        kind = str(magic, "ascii")
        if version != _VERSIONS[magic]:
            raise UnsupportedFile(
                self.path, f"{kind} version {version} is not supported, only {_VERSIONS[magic]}"
            )
        return kind

    def _index(self) -> dict[int, tuple[int, int]]:
        count = _HEADER.unpack_from(self._mapping)[2]
        end = len(self._bytes)
        position = _HEADER.size
        if count > (end - position) // _SECTION.size:
            raise MalformedFile(
                self.path, f"claims {count} sections, more than its {end} bytes can hold"
            )
        sections: dict[int, tuple[int, int]] = {}
        for number in range(count):
            if end - position < _SECTION.size:
                raise MalformedFile(
                    self.path, f"is truncated: it ends before section {number + 1} of {count}"
                )
            kind, size = _SECTION.unpack_from(self._mapping, position)
            position += _SECTION.size
            if size > end - position:
                raise MalformedFile(
                    self.path,
                    f"is truncated: section {kind} claims {size} bytes, {end - position} are left",
                )
            if kind in sections:
                raise MalformedFile(self.path, f"holds section {kind} twice")
            sections[kind] = (position, size)
            position += size
        if position != end:
            raise MalformedFile(self.path, f"holds {end - position} bytes after its last section")
        return sections

    def expect(self, kind: str) -> None:
        """Refuse a file of another kind.

        Raises
        ------
        MalformedFile
        """
        if self.kind != kind:
            raise MalformedFile(self.path, f"is a {self.kind} file, but a {kind} file is needed")

    def __contains__(self, section: int) -> bool:
        return section in self._sections

    def section(self, number: int, size: int | None = None, what: str = "") -> Bytes:
        """A section's bytes, read-only.

        Parameters
        ----------
        number
            The section's type.
        size
            The bytes it must hold, if known.
        what
            Why it must hold them, for the error: ``"4 points"``.

        Raises
        ------
        MalformedFile
            If it is missing or holds another number of bytes.
        """
        if number not in self._sections:
            raise MalformedFile(self.path, f"lacks section {number}")
        position, actual = self._sections[number]
        if size is not None and actual != size:
            raise MalformedFile(
                self.path,
                f"section {number} holds {actual} bytes, but {size} are needed"
                + (f" for {what}" if what else ""),
            )
        return self._bytes[position : position + actual]

    def drop(self, view: Bytes) -> None:
        """Give the pages behind a view of this file back to the system; it stays usable.

        They are clean pages of a file: the next access maps them again.
        """
        base = self._bytes.ctypes.data
        start = (view.ctypes.data - base) // mmap.PAGESIZE * mmap.PAGESIZE
        stop = min(view.ctypes.data - base + view.nbytes, len(self._bytes))
        if stop > start:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        if error.errno == errno.ENOENT:
            return "no such file"
        return os.strerror(error.errno).lower()
    return str(error)


class Fields:
    """Reads a section's integers in order."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.position = 0

    def integer(self, size: int) -> int:
        """The next ``size`` bytes as an unsigned little-endian integer."""
        return int.from_bytes(self.take(size), "little")

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes.

        Raises
        ------
        EOFError
            If fewer are left.
        """
        taken = self._data[self.position : self.position + size].tobytes()
        if len(taken) != size:
            raise EOFError
        self.position += size
        return taken
