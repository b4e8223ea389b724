"""The matrices A and B of a key in compressed rows, and their products with a witness."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from prover.backends.cuda.device import Array, Bytes, Device
from prover.curves import Curve
from prover.formats.zkey import COEFFICIENT

LONG_ROW = 64
"""Rows with more terms get a block of threads, others one thread."""
LONG_ROW_THREADS = 128
"""As in kernels/csr.cuh."""

_SHORT_ROW_THREADS = 128
_PIECE_TERMS = 1 << 18
_MOST_KNOWN = 1 << 20

_MULTIPLIERS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64
)


@dataclass(frozen=True)
class Matrices:
    """Both matrices as one of 2 N rows, those of A first.

    The arrays are NumPy's from `compress`, the device's from `to_device`.

    Attributes
    ----------
    starts
        Row i has the entries starts[i] to starts[i + 1].
    entries
        Shape (terms, 2): signal, and index into ``coefficients``.
    coefficients
        The different values, as in a zkey.
    short, long
        The rows of at most `LONG_ROW` terms, those with most first, and all other rows.
    """

    starts: Array
    entries: Array
    coefficients: Array
    short: Array
    long: Array

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(getattr(self, part.name).nbytes) for part in fields(self))

    def to_device(self, device: Device) -> "Matrices":
        """A copy in device memory."""
        return Matrices(*(device.upload(getattr(self, part.name)) for part in fields(self)))

    def multiply(self, device: Device, curve: Curve, witness: Array, out: Array) -> None:
        """Overwrite ``out``, 2 N scalars, with A w and B w in Montgomery form; w is standard."""
        rows = (self.starts, self.entries, self.coefficients, witness, out)
        blocks = -(-len(self.short) // _SHORT_ROW_THREADS)
        count = np.uint32(len(self.short))
        device.launch(curve, "short_rows", blocks, _SHORT_ROW_THREADS, self.short, count, *rows)
        device.launch(curve, "long_rows", len(self.long), LONG_ROW_THREADS, self.long, *rows)


def compress(
    coefficients: Bytes, domain: int, drop: Callable[[Bytes], None] = lambda rows: None
) -> Matrices:
    """The matrices of a key from its records, which must have been validated.

    Parameters
    ----------
    coefficients
        Shape (n, 44); see `COEFFICIENT`.
    domain
        N.
    drop
        Told of each piece of the records that has been read.
    """
    count = len(coefficients)
    rows = np.empty(count, np.uint32)
    entries = np.empty((count, 2), np.uint32)
    known = _Coefficients()
    for start, records in _pieces(coefficients, drop):
        piece = slice(start, start + len(records))
        rows[piece] = records["matrix"] * np.uint32(domain) + records["constraint"]
        entries[piece, 0] = records["signal"]
        entries[piece, 1] = known.indices(np.ascontiguousarray(records["value"]))
    order = _by_row(rows, domain)
    if order is not None:
        rows, entries = rows[order], entries[order]
    lengths = np.bincount(rows, minlength=2 * domain)
    starts = np.zeros(2 * domain + 1, np.uint32)
    np.cumsum(lengths, out=starts[1:])
    short = np.flatnonzero(lengths <= LONG_ROW)
    # Sorting bytes takes a time linear in their number.
    longest_first = np.argsort(LONG_ROW - lengths[short].astype(np.uint8), kind="stable")
    return Matrices(
        starts=starts,
        entries=entries,
        coefficients=known.values(),
        short=short[longest_first].astype(np.uint32),
        long=np.flatnonzero(lengths > LONG_ROW).astype(np.uint32),
    )


def _pieces(
    coefficients: Bytes, drop: Callable[[Bytes], None]
) -> Iterator[tuple[int, NDArray[np.void]]]:
    for start in range(0, len(coefficients), _PIECE_TERMS):
        piece = coefficients[start : start + _PIECE_TERMS]
        yield start, piece.view(COEFFICIENT).reshape(-1)
        drop(piece)


def _by_row(rows: NDArray[np.uint32], domain: int) -> NDArray[np.intp] | None:
    """What sorts the terms, None if they are sorted.

    snarkjs writes them by constraint: then telling the matrices apart is all there is to do.
    """
    if not (rows[1:] < rows[:-1]).any():
        return None
    order = np.concatenate([np.flatnonzero(rows < domain), np.flatnonzero(rows >= domain)])
    if (rows[order][1:] < rows[order][:-1]).any():
        order = np.argsort(rows, kind="stable")
    return order


class _Coefficients:
    """The different values of a key: a circuit has few, such as 1, -1 and powers of two."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._values: list[Bytes] = []
        self._count = 0

    def values(self) -> Bytes:
        return np.concatenate(self._values)

    def indices(self, values: Bytes) -> NDArray[np.uint32]:
        """The index of each value, shape (n, 32); new ones get new indices."""
        words = values.view(np.uint64)
        hashes = (words * _MULTIPLIERS).sum(axis=1, dtype=np.uint64)
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        if not np.array_equal(words[first[inverse]], words):  # two values of one hash
            _, first, inverse = np.unique(words, axis=0, return_index=True, return_inverse=True)
        return self._add(values[first])[inverse.reshape(-1)]

    def _add(self, different: Bytes) -> NDArray[np.uint32]:
        found = np.empty(len(different), np.uint32)
        fresh = []
        for i, value in enumerate(different):
            encoded = value.tobytes()
            index = self._known.get(encoded)
            if index is None:
                index = self._count
                self._count += 1
                fresh.append(i)
                if index < _MOST_KNOWN:  # a key of many values may hold later ones twice
                    self._known[encoded] = index
            found[i] = index
        self._values.append(different[fresh])
        return found
