"""Assignments: what a circuit's proof is made of, with the memory that it takes, and its end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

import bigmem
from prover import groth16
from prover.backends.base import Bytes, Mask, Operands
from prover.backends.cpu import _cpu
from prover.backends.cpu.backend import CpuBackend
from prover.curves import SCALAR_BYTES
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey

_PIECE_ROWS = 1 << 18
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Masks:
    """Which points of a key are not infinity: the densities of A and B, once a key.

    Attributes
    ----------
    a, b
        Shape (signals,). B has the same points in both groups.
    inputs
        Number of public signals, the constant included; they come first.
    """

    a: Mask
    b: Mask
    inputs: int

    @classmethod
    def of(
        cls, key: ProvingKey, allocator: bigmem.Allocator | None = None, threads: int = 0
    ) -> Self:
        """Look at every point of A and of B in G1."""
        a, b = (_finite(key, points, allocator, threads) for points in (key.a1, key.b1))
        return cls(a, b, key.public + 1)

    @property
    def a_aux(self) -> Mask:
        """Of A, the private signals."""
        return self.a[self.inputs :]

    @property
    def b_input(self) -> Mask:
        """Of B, the public signals."""
        return self.b[: self.inputs]

    @property
    def b_aux(self) -> Mask:
        """Of B, the private signals."""
        return self.b[self.inputs :]


def _finite(
    key: ProvingKey, points: Bytes, allocator: bigmem.Allocator | None, threads: int
) -> Mask:
    mask: Mask = bigmem.empty((len(points),), np.bool_, allocator=allocator)
    rows = mask.view(np.uint8).reshape(-1, 1)
    for start in range(0, len(points), _PIECE_ROWS):
        piece = points[start : start + _PIECE_ROWS]
        _cpu.mark_finite(key.curve.name, 1, piece, rows[start : start + _PIECE_ROWS], threads)
        key.drop(piece)
    return mask


class Assignment(Operands):
    """The operands of one circuit, which die in parts.

    Attributes
    ----------
    path
        The file of the witness.
    public
        The values of the public signals.
    """

    def __init__(
        self,
        key: ProvingKey,
        witness: Witness,
        masks: Masks,
        *,
        allocator: bigmem.Allocator | None,
        early: bool,
        returned: Callable[[int], None],
        threads: int,
    ) -> None:
        super().__init__(
            w=bigmem.empty(witness.values.shape, np.uint8, allocator=allocator),
            finite_a=masks.a,
            finite_b=masks.b,
            sole=True,
        )
        with bigmem.layer("witness"):
            witness.read(self.w, threads)
        self.path = witness.path
        self.public = groth16.public_signals(key, self.w)
        self._vectors: tuple[Bytes, Bytes, Bytes] | None = None
        self._early = early
        self._returned = returned

    def multiply(
        self, key: ProvingKey, backend: CpuBackend, allocator: bigmem.Allocator | None
    ) -> None:
        """Make a, b and c: one pass over the matrices of the key."""
        shape = (key.domain, SCALAR_BYTES)
        a, b, c = (bigmem.empty(shape, np.uint8, allocator=allocator) for _ in range(3))
        with bigmem.layer("sparse"):
            backend.products(key.curve, key.coefficients, self.w, a, b, c)
            key.drop(key.coefficients)
        self._vectors = (a, b, c)

    def vectors(self) -> tuple[Bytes, Bytes, Bytes] | None:
        """See `Operands`."""
        return self._vectors

    def read(self) -> None:
        """See `Operands`; a, b and c are released now if that is to be early."""
        if self._early and self._vectors is not None:
            with bigmem.layer("release"):
                self._release_vectors()

    def release(self) -> None:
        """Release all that is left; a second time, nothing happens."""
        self._release_vectors()
        size = _held_bytes(self.w.nbytes)
        if size:
            self.w = np.empty((0, SCALAR_BYTES), np.uint8)
            self._returned(size)

    def _release_vectors(self) -> None:
        if self._vectors is not None:
            size = sum(_held_bytes(vector.nbytes) for vector in self._vectors)
            self._vectors = None
            self._returned(size)


class Synthesis:
    """Makes the assignments of a key's circuits.

    Parameters
    ----------
    vectors
        Whether assignments have a, b and c.
    early
        Whether these are released as soon as they have been read, or with the rest.
    allocator
        Where assignments and masks are; None for the process default.
    threads
        0 for every core.

    Attributes
    ----------
    masks
        Of the key.
    vector_bytes, nbytes, mask_bytes
        What each vector of an assignment, all of it and the masks take, in whole pages.
    """

    def __init__(
        self,
        key: ProvingKey,
        *,
        vectors: bool,
        early: bool,
        allocator: bigmem.Allocator | None = None,
        threads: int = 0,
    ) -> None:
        self._key = key
        self._with_vectors = vectors
        self._early = early
        self._allocator = allocator
        self._backend = CpuBackend(threads)
        self.masks = Masks.of(key, allocator, threads)
        self.mask_bytes = 2 * _held_bytes(key.signals)
        rows = [key.signals, *[key.domain] * 3] if vectors else [key.signals]
        self.vector_bytes = tuple(_held_bytes(count * SCALAR_BYTES) for count in rows)
        self.nbytes = sum(self.vector_bytes)

    def make(self, witness: Witness, returned: Callable[[int], None]) -> Assignment:
        """The assignment of a witness; ``returned`` is told of bytes when they are released.

        Raises
        ------
        MismatchedFiles
            If the witness is for another circuit.
        bigmem.OutOfMemory
        """
        groth16.match(self._key, witness)
        with bigmem.layer("synthesis"):
            assignment = Assignment(
                self._key,
                witness,
                self.masks,
                allocator=self._allocator,
                early=self._early,
                returned=returned,
                threads=self._backend.threads,
            )
            if self._with_vectors:
                assignment.multiply(self._key, self._backend, self._allocator)
        return assignment


def _held_bytes(nbytes: int) -> int:
    return -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
