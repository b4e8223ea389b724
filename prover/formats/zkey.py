"""Reader of zkey files: the proving key of a circuit, as snarkjs's Groth16 setup writes it."""

import os
from collections.abc import Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

from prover.curves import CURVES, SCALAR_BYTES
from prover.errors import MalformedFile, UnsupportedFile
from prover.formats.container import Bytes, Container, Fields
from prover.formats.scan import check_points, check_scalars, check_subgroup, pieces

COEFFICIENT = np.dtype(
    [("matrix", "<u4"), ("constraint", "<u4"), ("signal", "<u4"), ("value", "u1", SCALAR_BYTES)]
)
"""A record of section 4; the value v is stored as v R^2 mod r."""

_OTHER_PROTOCOLS = {2: "PLONK", 10: "fflonk"}
_HEADER_POINTS = (
    ("alpha1", 1),
    ("beta1", 1),
    ("beta2", 2),
    ("gamma2", 2),
    ("delta1", 1),
    ("delta2", 2),
)


class ProvingKey:
    """A Groth16 proving key over a mapped zkey file.

    Opening checks the structure, and all of the verification key (header points and IC) as far as
    the subgroup. `check` looks at every other value once; proving calls it.

    Attributes
    ----------
    path, curve
        The file, as the user named it, and the curve it is over.
    signals, public, domain
        Number of signals (signal 0, the constant one, included), of public signals, and N.
    alpha1, beta1, delta1, beta2, gamma2, delta2
        Affine points in Montgomery form, shape (1, bytes of a point).
    ic
        One point for the constant and for each public signal, shape (public + 1, ...).
    coefficients
        Records of the matrices A and B, shape (n, 44); see `COEFFICIENT`.
    a1, b1, b2
        The points of each signal in A (G1) and in B (G1 and G2).
    c1
        The points of each private signal; row 0 is signal public + 1.
    h1
        The points of the quotient, shape (domain, ...).
    contributions
        Number of contributions that the key records.
    constraints
        Number of constraints of the circuit; known once `check` has run, 0 before.
    """

    alpha1: Bytes
    beta1: Bytes
    beta2: Bytes
    gamma2: Bytes
    delta1: Bytes
    delta2: Bytes

    def __init__(self, container: Container) -> None:
        container.expect("zkey")
        self._container = container
        self._checked = False
        self.constraints = 0
        self.path = container.path
        self._check_protocol()
        self._read_header()
        self.ic = self._points(3, 1, self.public + 1, "the public signals")
        self.coefficients = self._read_coefficients()
        self.a1 = self._points(5, 1, self.signals, "the signals")
        self.b1 = self._points(6, 1, self.signals, "the signals")
        self.b2 = self._points(7, 2, self.signals, "the signals")
        self.c1 = self._points(8, 1, self.signals - self.public - 1, "the private signals")
        self.h1 = self._points(9, 1, self.domain, "the domain")
        self.contributions = self._count_contributions()
        self._check_verification_key()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map a zkey file and check its structure and its verification key.

        Raises
        ------
        UnreadableFile, MalformedFile, UnsupportedFile
        """
        return cls(Container.open(path))

    # Structure: nothing here allocates more than the header.

    def _check_protocol(self) -> None:
        protocol = int.from_bytes(self._container.section(1, 4, "a protocol").tobytes(), "little")
        if protocol != 1:
            name = _OTHER_PROTOCOLS.get(protocol, f"protocol-{protocol}")
            raise UnsupportedFile(
                self.path, f"is a {name} key; make a groth16 key of the circuit instead"
            )

    def _read_header(self) -> None:
        data = self._container.section(2)
        sizes = {curve.coordinate_bytes: curve for curve in CURVES.values()}
        coordinate_bytes = int.from_bytes(data[:4].tobytes(), "little")
        if coordinate_bytes not in sizes:
            raise UnsupportedFile(
                self.path,
                f"claims coordinates of {coordinate_bytes} bytes, only "
                f"{' and '.join(map(str, sizes))} are known",
            )
        self.curve = curve = sizes[coordinate_bytes]
        points = sum(curve.point_bytes(group) for _, group in _HEADER_POINTS)
        size = 4 + coordinate_bytes + 4 + SCALAR_BYTES + 12 + points
        fields = Fields(self._container.section(2, size, f"a {curve.title} header"))
        fields.take(4)
        q, scalar_bytes = fields.integer(coordinate_bytes), fields.integer(4)
        if q != curve.q or scalar_bytes != SCALAR_BYTES or fields.integer(SCALAR_BYTES) != curve.r:
            raise UnsupportedFile(
                self.path,
                f"has coordinates of {coordinate_bytes} bytes, but not the primes of "
                f"{curve.title}; the curves are bn128 and bls12381",
            )
        self.signals, self.public, self.domain = (fields.integer(4) for _ in range(3))
        self._check_sizes()
        position = fields.position
        for name, group in _HEADER_POINTS:
            end = position + curve.point_bytes(group)
            setattr(self, name, data[position:end].reshape(1, -1))
            position = end

    def _check_sizes(self) -> None:
        if self.public >= self.signals:
            raise MalformedFile(
                self.path,
                f"claims {self.public} public signals of {self.signals}, the constant included",
            )
        if self.domain < 1 or self.domain & (self.domain - 1):
            raise MalformedFile(self.path, f"its domain size {self.domain} is no power of two")
        if self.domain > self.curve.largest_domain:
            raise UnsupportedFile(
                self.path,
                f"its domain of {self.domain} exceeds {self.curve.largest_domain}, the largest "
                f"for {self.curve.title} whose double still has a root of unity",
            )

    def _points(self, number: int, group: int, count: int, of: str) -> Bytes:
        row = self.curve.point_bytes(group)
        data = self._container.section(number, count * row, f"one point for each of {of}")
        return data.reshape(count, row)

    def _read_coefficients(self) -> Bytes:
        data = self._container.section(4)
        if len(data) < 4:
            raise MalformedFile(self.path, "section 4 is too short for its count")
        count = int.from_bytes(data[:4].tobytes(), "little")
        size = 4 + count * COEFFICIENT.itemsize
        data = self._container.section(4, size, f"the {count} coefficients it claims")
        if count <= self.public:
            raise MalformedFile(
                self.path, f"has {count} coefficients, fewer than its public signals need"
            )
        return data[4:].reshape(count, COEFFICIENT.itemsize)

    def _count_contributions(self) -> int:
        # csHash, then per contribution three G1, one G2, a transcript, a type, parameters
        fields = Fields(self._container.section(10))
        try:
            fields.take(64)
            count = fields.integer(4)
            for _ in range(count):
                fields.take(3 * self.curve.point_bytes(1) + self.curve.point_bytes(2) + 64 + 4)
                fields.take(fields.integer(4))
        except EOFError:
            raise MalformedFile(
                self.path, "section 10 (the contributions) ends too early"
            ) from None
        if fields.position != len(self._container.section(10)):
            raise MalformedFile(self.path, "section 10 (the contributions) is too long")
        return count

    def _check_verification_key(self) -> None:
        for name, group in _HEADER_POINTS:
            point: Bytes = getattr(self, name)
            self._check_header_points(point, group, name)
        self._check_header_points(self.ic, 1, "IC point {}")

    def _check_header_points(self, rows: Bytes, group: int, what: str) -> None:
        infinite = ~rows.any(axis=1)
        if infinite.any():
            raise MalformedFile(self.path, f"{what.format(infinite.argmax())} is infinity")
        check_points(self._container, self.curve, group, rows, what)
        check_subgroup(self._container, self.curve, group, rows, what)

    # Values: one pass in pieces over everything else.

    def check(self, *, subgroups: bool = False, threads: int = 0) -> None:
        """Check every value of the key, once; later calls return at once.

        Indices in range, coefficients below r, coordinates below q, points on the curve.

        Parameters
        ----------
        subgroups
            Test every point's subgroup too, which costs more than a proof.
        threads
            0 for every core.

        Raises
        ------
        MalformedFile
        """
        if not self._checked:
            self._check_coefficients(threads)
            for what, group, rows in self._point_sections():
                check_points(self._container, self.curve, group, rows, what, threads)
            self._checked = True
        if subgroups:
            for what, group, rows in self._point_sections():
                check_subgroup(self._container, self.curve, group, rows, what, threads)

    def _point_sections(self) -> Iterator[tuple[str, int, Bytes]]:
        yield "A point {}", 1, self.a1
        yield "B1 point {}", 1, self.b1
        yield "B2 point {}", 2, self.b2
        yield "C point {}", 1, self.c1
        yield "H point {}", 1, self.h1

    def _check_coefficients(self, threads: int) -> None:
        last = 0
        for start, rows in pieces(self._container, self.coefficients):
            records = rows.view(COEFFICIENT).reshape(-1)
            for field, limit in (
                ("matrix", 2),
                ("constraint", self.domain),
                ("signal", self.signals),
            ):
                self._check_index(records[field], start, field, limit)
            last = max(last, int(records["constraint"].max()))
            check_scalars(
                self._container, self.curve, records["value"], start, "coefficient {}", threads
            )
        # The setup appends a row for the constant and each public signal; N is the least power
        # of two above the last row.
        self.constraints = last - self.public
        if self.constraints < 0 or self.domain > max(2, 2 * last):
            raise MalformedFile(
                self.path,
                f"its {last + 1} constraint rows do not fit {self.public} public signals and a "
                f"domain of {self.domain}",
            )

    def _check_index(
        self,
        column: NDArray[np.uint32],
        start: int,
        field: str,
        limit: int,
    ) -> None:
        if int(column.max()) >= limit:
            bad = int((column >= limit).argmax())
            raise MalformedFile(
                self.path,
                f"coefficient {start + bad} names {field} {int(column[bad])}, but there are "
                f"{limit}",
            )

    @property
    def has_contribution(self) -> bool:
        """False if delta is the generator: anyone can then forge proofs for this key."""
        from prover.backends.cpu import _cpu

        generator = _cpu.generator(self.curve.name, 2)
        return not np.array_equal(generator.reshape(-1), self.delta2.reshape(-1))

    def drop(self, rows: Bytes) -> None:
        """Give the pages behind one of the key's arrays back to the system."""
        self._container.drop(rows)
