"""Where a witness waits: memory that another process can be handed, and that is overwritten."""

import mmap
import os
from pathlib import Path
from typing import Self

from prover.errors import MalformedFile
from prover.formats.container import Container
from prover.formats.wtns import Witness

_ZEROS = bytes(1 << 20)


class SecretFile:
    """A file in memory, without a name, that is filled piece by piece.

    Whoever holds its descriptor can map it; it is in no directory and reaches no disk but swap.
    """

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("witness", os.MFD_CLOEXEC)
        self.size = 0

    @classmethod
    def of(cls, path: Path) -> Self:
        """A copy of a file.

        Raises
        ------
        OSError
        """
        secret = cls()
        try:
            with path.open("rb", buffering=0) as file:
                while piece := file.read(len(_ZEROS)):
                    secret.write(piece)
        except BaseException:
            secret.close()
            raise
        return secret

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Append."""
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self.size += len(piece)

    def fileno(self) -> int:
        """The descriptor; it stays this object's."""
        return self._descriptor

    def copy_to(self, descriptor: int) -> None:
        """Write everything to another file.

        Raises
        ------
        OSError
        """
        position = 0
        while position < self.size:
            position += os.sendfile(descriptor, self._descriptor, position, self.size - position)

    def close(self) -> None:
        """Overwrite what was written, and let go of it. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        for position in range(0, self.size, len(_ZEROS)):
            os.pwrite(descriptor, _ZEROS[: self.size - position], position)
        os.close(descriptor)


def mapped_witness(descriptor: int) -> Witness:
    """The witness in a file without a name; errors call it ``witness``.

    Raises
    ------
    MalformedFile, UnsupportedFile
    """
    size = os.fstat(descriptor).st_size
    if size < 12:
        raise MalformedFile("witness", f"holds {size} bytes, too few for the header")
    mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    return Witness(Container("witness", mapping, size))
