"""The matrices A and B of a key in compressed rows, and their products with a witness."""

import os
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from prover.backends.cuda.device import Array, Bytes, Device
from prover.backends.cuda.side_by_side import side_by_side
from prover.curves import Curve
from prover.formats.zkey import COEFFICIENT

LONG_ROW = 64
"""Rows with more terms get a block of threads, others one thread."""
LONG_ROW_THREADS = 128
"""As in kernels/csr.cuh."""

_SHORT_ROW_THREADS = 128
_PIECE_TERMS = 1 << 18
_MOST_KNOWN = 1 << 20
_MOST_THREADS = 16
"""For each, two pieces with all that is read of them are in memory: some 20 MiB."""

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
        self._launch(device, curve, witness, out, 0, len(self.starts) - 1, times=False)

    def multiply_one(
        self,
        device: Device,
        curve: Curve,
        witness: Array,
        matrix: int,
        out: Array,
        *,
        times: bool = False,
    ) -> None:
        """Overwrite ``out``, N scalars, with A w (0) or B w (1), or multiply it by that."""
        n = (len(self.starts) - 1) // 2
        self._launch(device, curve, witness, out, matrix * n, (matrix + 1) * n, times=times)

    def _launch(
        self,
        device: Device,
        curve: Curve,
        witness: Array,
        out: Array,
        begin: int,
        end: int,
        *,
        times: bool,
    ) -> None:
        target = (out, np.uint32(begin), np.uint32(end), np.uint32(times))
        rows = (self.starts, self.entries, self.coefficients, witness, *target)
        blocks = -(-len(self.short) // _SHORT_ROW_THREADS)
        count = np.uint32(len(self.short))
        device.launch(curve, "short_rows", blocks, _SHORT_ROW_THREADS, self.short, count, *rows)
        device.launch(curve, "long_rows", len(self.long), LONG_ROW_THREADS, self.long, *rows)


def compress(
    coefficients: Bytes,
    domain: int,
    drop: Callable[[Bytes], None] = lambda rows: None,
    threads: int = 0,
) -> Matrices:
    """The matrices of a key from its records, which must have been validated.

    Parameters
    ----------
    coefficients
        Shape (n, 44); see `COEFFICIENT`.
    domain
        N.
    drop
        Told of each piece of the records that has been read, by several threads.
    threads
        0 for every core.
    """
    count = len(coefficients)
    rows = np.empty(count, np.uint32)
    entries = np.empty((count, 2), np.uint32)
    known = _Coefficients()

    def read(start: int) -> tuple[NDArray[np.intp], Bytes]:
        """Read a piece, except for the coefficients that are not known: where and what they are."""
        piece = slice(start, min(start + _PIECE_TERMS, count))
        records = coefficients[piece].view(COEFFICIENT).reshape(-1)
        rows[piece] = records["matrix"] * np.uint32(domain) + records["constraint"]
        entries[piece, 0] = records["signal"]
        values = np.ascontiguousarray(records["value"])
        entries[piece, 1], unknown = known.find(values)
        drop(coefficients[piece])
        return start + unknown, values[unknown]

    # Most circuits have no coefficient that the first piece has not. What is unknown is kept.
    pieces = range(0, count, _PIECE_TERMS)
    threads = min(threads or len(os.sched_getaffinity(0)), _MOST_THREADS)
    for begin in (0, *range(1, len(pieces), 2 * threads)):
        end = begin + 2 * threads if begin else 1
        for unknown, values in side_by_side(read, pieces[begin:end], threads):
            # Other pieces of the round may have added them since.
            entries[unknown, 1], new = known.find(values)
            entries[unknown[new], 1] = known.add(values[new])
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
    """The different values of a key: a circuit has few, such as 1, -1 and powers of two.

    A value's index is where it stands among all. Of a key with very many, only the first are
    known again. Several threads may find values at a time.
    """

    def __init__(self) -> None:
        self._pieces = [np.empty((0, 32), np.uint8)]
        self._count = 0
        self._known: dict[bytes, int] = {}
        self._words = np.empty((0, 4), np.uint64)  # of the known values
        self._hashes = np.empty(0, np.uint64)  # of the known values, sorted
        self._by_hash = np.empty(0, np.intp)  # their indices

    def values(self) -> Bytes:
        return np.concatenate(self._pieces)

    def find(self, values: Bytes) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
        """The index of each value, shape (n, 32), and which are not known."""
        if len(self._hashes) == 0:
            return np.zeros(len(values), np.uint32), np.arange(len(values))
        words = values.view(np.uint64)
        places = np.searchsorted(self._hashes, _hashes_of(words))
        found = self._by_hash[np.minimum(places, len(self._hashes) - 1)]
        missing = np.flatnonzero((self._words[found] != words).any(axis=1))
        return found.astype(np.uint32), missing

    def add(self, values: Bytes) -> NDArray[np.intp]:
        """The index of each value; new ones get new indices."""
        if len(values) == 0:
            return np.empty(0, np.intp)
        words = values.view(np.uint64)
        hashes = _hashes_of(words)
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        if not np.array_equal(words[first[inverse]], words):  # two values of one hash
            _, first, inverse = np.unique(words, axis=0, return_index=True, return_inverse=True)
        different = words[first]
        found = np.empty(len(different), np.intp)
        count = self._count
        for i, row in enumerate(different):
            encoded = row.tobytes()
            found[i] = self._known.get(encoded, count)
            if found[i] == count:
                count += 1
                if found[i] < _MOST_KNOWN:
                    self._known[encoded] = int(found[i])
        fresh = different[found >= self._count]
        self._pieces.append(fresh.view(np.uint8))
        self._count = count
        room = max(0, _MOST_KNOWN - len(self._words))
        self._words = np.concatenate([self._words, fresh[:room]])
        hashes = _hashes_of(self._words)
        self._by_hash = np.argsort(hashes)
        self._hashes = hashes[self._by_hash]
        return found[inverse.reshape(-1)]


def _hashes_of(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    hashes: NDArray[np.uint64] = (words * _MULTIPLIERS).sum(axis=1, dtype=np.uint64)
    return hashes
