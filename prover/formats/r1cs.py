"""Reader of r1cs files: the constraints of a circuit, as circom writes them."""

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from prover.curves import SCALAR_BYTES, Curve
from prover.errors import MalformedFile, UnsupportedFile
from prover.formats.container import Bytes, Container, Fields
from prover.formats.scan import check_scalars, scalar_curve

_TERM_WORDS = 1 + SCALAR_BYTES // 4
_BLOCK_BYTES = 8 << 20
"""Of the file: what is made of a block takes several times as much."""


@dataclass(frozen=True)
class Terms:
    """Some terms of the constraints, in the file's order.

    Attributes
    ----------
    matrix
        0 (A), 1 (B) or 2 (C), shape (n,), uint8.
    constraint, wire
        Row and column, shape (n,), uint32.
    value
        The coefficient, standard form, below r, shape (n, 32).
    """

    matrix: NDArray[np.uint8]
    constraint: NDArray[np.uint32]
    wire: NDArray[np.uint32]
    value: Bytes

    def __len__(self) -> int:
        return len(self.matrix)


class R1cs:
    """A rank-1 constraint system over a mapped file.

    Opening walks over all constraints, so that the structure is known to be sound; the values are
    checked when `blocks` delivers them.

    Attributes
    ----------
    path, curve
        The file, as the user named it, and the curve whose scalar field it is over.
    wires
        Number of wires; wire 0 is the constant one, then outputs, public and private inputs.
    outputs, public_inputs, private_inputs
        Number of wires of each kind.
    labels
        Number of signals before the compiler simplified.
    constraints, terms
        Number of constraints, and of terms in all their linear combinations.
    """

    def __init__(self, container: Container) -> None:
        container.expect("r1cs")
        self._container = container
        self.path = container.path
        if 4 in container or 5 in container:
            raise UnsupportedFile(
                self.path, "uses custom gates, which are for PLONK and have no place in groth16"
            )
        self._read_header()
        container.section(3, self.wires * 8, f"the labels of {self.wires} wires")
        self._words: NDArray[np.uint32] = self._constraint_words()
        self._heads = self._walk()
        self.terms = (len(self._words) - len(self._heads)) // _TERM_WORDS

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map an r1cs file and check its structure.

        Raises
        ------
        UnreadableFile, MalformedFile, UnsupportedFile
        """
        return cls(Container.open(path))

    @property
    def public(self) -> int:
        """Number of public signals: outputs and public inputs."""
        return self.outputs + self.public_inputs

    def _read_header(self) -> None:
        data = self._container.section(1)
        scalar_bytes = int.from_bytes(data[:4].tobytes(), "little")
        if len(data) >= 4 and scalar_bytes != SCALAR_BYTES:
            raise UnsupportedFile(
                self.path, f"is over a field of {scalar_bytes} bytes, only {SCALAR_BYTES} are known"
            )
        fields = Fields(self._container.section(1, SCALAR_BYTES + 32, "a header"))
        fields.take(4)
        self.curve: Curve = scalar_curve(
            self._container, scalar_bytes, fields.integer(SCALAR_BYTES)
        )
        self.wires, self.outputs, self.public_inputs, self.private_inputs = (
            fields.integer(4) for _ in range(4)
        )
        self.labels, self.constraints = fields.integer(8), fields.integer(4)
        named = 1 + self.public + self.private_inputs
        if self.wires < named:
            raise MalformedFile(
                self.path, f"claims {self.wires} wires, but {named} inputs, outputs and the one"
            )

    def _constraint_words(self) -> NDArray[np.uint32]:
        # Everything in the section is a multiple of four bytes: a count, or a wire and a scalar.
        data = self._container.section(2)
        if len(data) % 4 or len(data) < 12 * self.constraints:
            raise MalformedFile(
                self.path, f"section 2 cannot hold the {self.constraints} constraints it claims"
            )
        return data.view("<u4")

    def _walk(self) -> NDArray[np.int64]:
        """Index of the count that begins each linear combination, three for a constraint."""
        # Cast from bytes: NumPy's own view of words would refuse a section off a word's border.
        words = self._words.view(np.uint8).data.cast("I")
        heads = array("q")
        position = 0
        try:
            for _ in range(3 * self.constraints):
                heads.append(position)
                position += 1 + _TERM_WORDS * words[position]
        except IndexError:
            position = len(words) + 1
        if position != len(words):
            raise MalformedFile(
                self.path,
                f"the lengths of its {self.constraints} constraints do not add up to section 2",
            )
        return np.frombuffer(heads, np.int64) if heads else np.zeros(0, np.int64)

    def blocks(self, threads: int = 0) -> Iterator[Terms]:
        """All terms in the file's order, validated, in blocks of bounded memory.

        Raises
        ------
        MalformedFile
            For a wire that does not exist or a coefficient that is not below r.
        """
        ends = np.append(self._heads[1:], len(self._words))
        first = 0
        while first < len(self._heads):
            budget = self._heads[first] + _BLOCK_BYTES // 4
            last = max(first + 1, int(np.searchsorted(ends, budget, side="right")))
            yield self._block(first, last, int(ends[last - 1]), threads)
            first = last

    def _block(self, first: int, last: int, end: int, threads: int) -> Terms:
        begin = int(self._heads[first])
        words = self._words[begin:end]
        heads = self._heads[first:last] - begin
        combination = np.repeat(np.arange(first, last), words[heads])
        is_term = np.ones(len(words), np.bool_)
        is_term[heads] = False
        terms = words[is_term].reshape(-1, _TERM_WORDS)
        self._container.drop(words.view(np.uint8))
        constraint = (combination // 3).astype(np.uint32)
        wire = terms[:, 0].copy()
        self._check_wires(wire, constraint)
        value = np.ascontiguousarray(terms[:, 1:]).view(np.uint8)
        offset = (begin - first) // _TERM_WORDS
        check_scalars(
            self._container, self.curve, value, offset, "the coefficient of term {}", threads
        )
        return Terms((combination % 3).astype(np.uint8), constraint, wire, value)

    def _check_wires(self, wire: NDArray[np.uint32], constraint: NDArray[np.uint32]) -> None:
        if len(wire) and int(wire.max()) >= self.wires:
            bad = int((wire >= self.wires).argmax())
            raise MalformedFile(
                self.path,
                f"constraint {constraint[bad]} names wire {wire[bad]}, but there are {self.wires}",
            )
