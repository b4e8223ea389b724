"""Writers of the files that circom makes, for circuits that are made up: r1cs and wtns."""

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from prover.curves import SCALAR_BYTES, Curve

Bytes = NDArray[np.uint8]

TERM = np.dtype([("wire", "<u4"), ("value", "u1", SCALAR_BYTES)])
"""A term of a linear combination, as a constraint holds it after the number of its terms."""


def scalar(value: int) -> Bytes:
    """The 32 bytes of a value, standard form."""
    return np.frombuffer(value.to_bytes(SCALAR_BYTES, "little"), np.uint8)


def write_r1cs(
    path: Path, curve: Curve, *, wires: int, private: int, constraints: Iterable[NDArray[np.void]]
) -> None:
    """Write a circuit with one public signal, the output on wire 1.

    Parameters
    ----------
    wires
        Number of wires, the one included.
    private
        Number of private inputs.
    constraints
        Records in pieces; a record is one constraint, byte for byte.
    """
    with path.open("wb") as file:
        file.write(struct.pack("<4sII", b"r1cs", 1, 3))
        with _section(file, 2):  # before the header, which says how many there are
            count = 0
            for records in constraints:
                file.write(records.data)
                count += len(records)
        with _section(file, 1):
            file.write(_field(curve))
            file.write(struct.pack("<IIIIQI", wires, 1, 0, private, wires, count))
        with _section(file, 3):
            file.write(np.arange(wires, dtype="<u8").data)


def write_wtns(path: Path, curve: Curve, values: Iterable[Bytes]) -> None:
    """Write a witness.

    Parameters
    ----------
    values
        Its values in pieces of rows of 32 bytes, standard form, the one first.
    """
    rows = list(values)
    with path.open("wb") as file:
        file.write(struct.pack("<4sII", b"wtns", 2, 2))
        with _section(file, 1):
            file.write(_field(curve) + struct.pack("<I", sum(map(len, rows))))
        with _section(file, 2):
            for piece in rows:
                file.write(np.ascontiguousarray(piece).data)


def _field(curve: Curve) -> bytes:
    return struct.pack("<I", SCALAR_BYTES) + scalar(curve.r).tobytes()


@contextmanager
def _section(file: BinaryIO, number: int) -> Iterator[None]:
    """A section of what is written meanwhile; its size is filled in at the end."""
    begin = file.tell() + 12
    file.write(struct.pack("<IQ", number, 0))
    yield
    end = file.tell()
    file.seek(begin - 8)
    file.write(struct.pack("<Q", end - begin))
    file.seek(end)
