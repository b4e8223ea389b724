"""Reader of wtns files: the value of every signal of a circuit for one input."""

import os
from typing import Self

from prover.curves import SCALAR_BYTES, Curve
from prover.errors import MalformedFile
from prover.formats.container import Bytes, Container, Fields
from prover.formats.scan import check_scalars, pieces, scalar_curve


class Witness:
    """A witness: validated, mapped, never copied here.

    Attributes
    ----------
    path
        The file, as the user named it.
    curve
        The curve whose scalar field the values belong to.
    values
        Shape (signals, 32), read-only, standard form, each below r; signal 0 is one.
    """

    def __init__(self, container: Container) -> None:
        container.expect("wtns")
        self._container = container
        self.path = container.path
        fields = _header(container)
        scalar_bytes = fields.integer(4)
        self.curve: Curve = scalar_curve(container, scalar_bytes, fields.integer(SCALAR_BYTES))
        count = fields.integer(4)
        data = container.section(2, count * SCALAR_BYTES, f"the {count} signals it claims")
        self.values: Bytes = data.reshape(count, SCALAR_BYTES)
        self._check_values()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map and validate a wtns file.

        Raises
        ------
        UnreadableFile, MalformedFile, UnsupportedFile
        """
        return cls(Container.open(path))

    def _check_values(self) -> None:
        one = (1).to_bytes(SCALAR_BYTES, "little")
        if len(self.values) == 0 or self.values[0].tobytes() != one:
            raise MalformedFile(self.path, "is no witness: its signal 0 is not one")
        for start, piece in pieces(self._container, self.values):
            check_scalars(self._container, self.curve, piece, start, "the value of signal {}")

    def read(self, out: Bytes, threads: int = 0) -> None:
        """Copy the values, on as many threads, and give the file's pages back meanwhile.

        Parameters
        ----------
        out
            Shape (signals, 32).
        threads
            0 for every core.
        """
        from prover.backends.cpu import _cpu

        for start, piece in pieces(self._container, self.values):
            _cpu.copy(piece, out[start : start + len(piece)], threads)

    def drop(self) -> None:
        """Give the pages of the values back to the system."""
        self._container.drop(self.values)


def _header(container: Container) -> Fields:
    size = 4 + SCALAR_BYTES + 4
    data = container.section(1)
    scalar_bytes = int.from_bytes(data[:4].tobytes(), "little")
    if len(data) >= 4 and scalar_bytes != SCALAR_BYTES:
        raise MalformedFile(
            container.path, f"claims values of {scalar_bytes} bytes, only {SCALAR_BYTES} are known"
        )
    return Fields(container.section(1, size, "a header"))
