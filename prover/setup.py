"""A Groth16 key from a circuit by one party who knows the trapdoor: for development only.

With the QAP's columns A_s, B_s, C_s at tau, over the Lagrange basis L of the N-th roots of unity:

    A = [A_s]_1, B1 = [B_s]_1, B2 = [B_s]_2                   every signal s
    IC = [beta A_s + alpha B_s + C_s]_1                       public s (gamma is 1)
    C = [(beta A_s + alpha B_s + C_s) / delta]_1              private s
    H = [L^(2N)_{2i+1}(tau) / delta]_1                        i = 0 to N - 1, see `prover.qap`

One row of A alone is appended for the constant and for each public signal, so that their columns
are independent and no public signal can be traded for another.
"""

import secrets
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol, Self

import numpy as np

from prover.backends.cpu import _cpu
from prover.curves import SCALAR_BYTES, Curve
from prover.errors import UnsupportedFile
from prover.formats.container import Bytes
from prover.formats.r1cs import R1cs, Terms
from prover.formats.zkey import COEFFICIENT

Progress = Callable[[str, int, int], None]
"""Told the section at work, the points made of it so far, and how many it will have."""


class Multiples(Protocol):
    """Multiples of a curve's generators.

    Attributes
    ----------
    piece
        How many to ask for at a time: enough that what is done once a call costs little.
    """

    piece: int

    def __call__(self, group: int, scalars: Bytes) -> Bytes:
        """The generator of a group times each scalar (standard form), rows as in a zkey."""


class CpuMultiples:
    """See `Multiples`; ``threads`` 0 is every core."""

    piece = 1 << 15

    def __init__(self, curve: Curve, threads: int = 0) -> None:
        self._curve = curve
        self._threads = threads
        self._generators = {group: _cpu.generator(curve.name, group) for group in (1, 2)}

    def __call__(self, group: int, scalars: Bytes) -> Bytes:
        """See `Multiples`."""
        out = np.empty((len(scalars), self._curve.point_bytes(group)), np.uint8)
        base = self._generators[group]
        _cpu.fixed_base(self._curve.name, group, base, scalars, out, self._threads)
        return out


@dataclass(frozen=True)
class Trapdoor:
    """The secrets of a setup: who knows them can prove anything.

    Attributes
    ----------
    tau, alpha, beta, delta
        From 1 to r - 1; tau is no root of unity of order 2N.
    """

    tau: int
    alpha: int
    beta: int
    delta: int

    @classmethod
    def draw(cls, curve: Curve, domain: int) -> Self:
        """Draw from the operating system's source of randomness."""

        def nonzero() -> int:
            return secrets.randbelow(curve.r - 1) + 1

        tau = nonzero()
        while pow(tau, 2 * domain, curve.r) == 1:
            tau = nonzero()
        return cls(tau, nonzero(), nonzero(), nonzero())


def domain_size(circuit: R1cs) -> int:
    """N, the smallest power of two above the constraints and public signals together.

    Raises
    ------
    UnsupportedFile
        If the circuit has no constraint, or more than the curve has roots of unity for.
    """
    if circuit.constraints == 0:
        raise UnsupportedFile(circuit.path, "has no constraint, so that there is nothing to prove")
    domain = 1 << (circuit.constraints + circuit.public).bit_length()
    if domain > circuit.curve.largest_domain:
        raise UnsupportedFile(
            circuit.path,
            f"needs a domain of {domain}; {circuit.curve.title} allows "
            f"{circuit.curve.largest_domain}",
        )
    return domain


def write_key(
    file: BinaryIO,
    circuit: R1cs,
    trapdoor: Trapdoor,
    *,
    threads: int = 0,
    multiples: Multiples | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a zkey file for the circuit; it records no contribution.

    Parameters
    ----------
    threads
        0 for every core.
    multiples
        Who makes the points; by default the CPU. The key does not depend on it.

    Raises
    ------
    UnsupportedFile
        See `domain_size`.
    MalformedFile
        If a value of the circuit is out of range.
    """
    multiples = multiples or CpuMultiples(circuit.curve, threads)
    _Setup(file, circuit, trapdoor, threads, multiples, progress or (lambda *_: None)).write()


class _Setup:
    def __init__(
        self,
        file: BinaryIO,
        circuit: R1cs,
        trapdoor: Trapdoor,
        threads: int,
        multiples: Multiples,
        progress: Progress,
    ) -> None:
        self._file = file
        self._circuit = circuit
        self._curve = circuit.curve
        self._trapdoor = trapdoor
        self._threads = threads
        self._progress = progress
        self._domain = domain_size(circuit)
        self._multiples = multiples

    def write(self) -> None:
        self._file.write(struct.pack("<4sII", b"zkey", 1, 10))
        self._section(1, struct.pack("<I", 1))
        self._section(2, self._header())
        columns = self._columns()
        r, t, public = self._curve.r, self._trapdoor, self._circuit.public
        ic = self._combine(columns[:, : public + 1], 1)
        c = self._combine(columns[:, public + 1 :], pow(t.delta, -1, r))
        a, b = columns[0], columns[1]
        h = self._lagrange(2 * self._domain, 1, 2, pow(t.delta, -1, r))
        _cpu.from_montgomery(self._curve.name, "scalar", h, h)
        self._points(3, "IC", 1, ic)
        self._coefficients()
        self._points(5, "A", 1, a)
        self._points(6, "B1", 1, b)
        self._points(7, "B2", 2, b)
        self._points(8, "C", 1, c)
        self._points(9, "H", 1, h)
        # No hash of the circuit and no contributions: this key did not come from a ceremony.
        self._section(10, bytes(64) + struct.pack("<I", 0))

    def _section(self, number: int, data: bytes) -> None:
        self._head(number, len(data))
        self._file.write(data)

    def _head(self, number: int, size: int) -> None:
        self._file.write(struct.pack("<IQ", number, size))

    def _header(self) -> bytes:
        curve, t = self._curve, self._trapdoor
        points = [(1, t.alpha), (1, t.beta), (2, t.beta), (2, 1), (1, t.delta), (2, t.delta)]
        return b"".join(
            [
                struct.pack("<I", curve.coordinate_bytes),
                curve.q.to_bytes(curve.coordinate_bytes, "little"),
                struct.pack("<I", SCALAR_BYTES),
                curve.r.to_bytes(SCALAR_BYTES, "little"),
                struct.pack("<III", self._circuit.wires, self._circuit.public, self._domain),
                *(self._multiples(group, _scalar(k)).tobytes() for group, k in points),
            ]
        )

    # Scalars

    def _lagrange(self, order: int, first: int, step: int, scale: int) -> Bytes:
        """Scale L^(order)_k(tau) for k = first, first + step, ...; N rows in Montgomery form."""
        out = np.empty((self._domain, SCALAR_BYTES), np.uint8)
        _cpu.lagrange(
            self._curve.name,
            _scalar(self._curve.root_of_unity(order)),
            order,
            first,
            step,
            _scalar(self._trapdoor.tau),
            _scalar(scale),
            out,
            self._threads,
        )
        return out

    def _columns(self) -> Bytes:
        """A_s, B_s, C_s at tau, standard form, shape (3, wires, 32)."""
        columns = np.zeros((3, self._circuit.wires, SCALAR_BYTES), np.uint8)
        weights = self._lagrange(self._domain, 0, 1, 1)
        for terms in self._terms():
            _cpu.add_to_columns(
                self._curve.name,
                terms.matrix,
                terms.constraint,
                terms.wire,
                terms.value,
                weights,
                columns,
            )
        return columns

    def _terms(self) -> Iterator[Terms]:
        yield from self._circuit.blocks(self._threads)
        yield self._public_rows()

    def _public_rows(self) -> Terms:
        signal = np.arange(self._circuit.public + 1, dtype=np.uint32)
        return Terms(
            np.zeros(len(signal), np.uint8),
            signal + np.uint32(self._circuit.constraints),
            signal,
            np.repeat(_scalar(1), len(signal), axis=0),
        )

    def _combine(self, columns: Bytes, scale: int) -> Bytes:
        """Scale (beta A + alpha B + C), standard form."""
        r, t = self._curve.r, self._trapdoor
        weights = [scale * weight % r for weight in (t.beta, t.alpha, 1)]
        out = np.empty(columns.shape[1:], np.uint8)
        a, b, c = (np.ascontiguousarray(column) for column in columns)
        weight_rows = np.concatenate([_scalar(weight) for weight in weights])
        _cpu.weighted_sum(self._curve.name, weight_rows, a, b, c, out, self._threads)
        return out

    # Sections of many rows

    def _coefficients(self) -> None:
        begin = self._file.tell()
        self._head(4, 0)
        self._file.write(struct.pack("<I", 0))
        count = 0
        for terms in self._terms():
            wanted = terms.matrix < 2
            records = np.empty(int(wanted.sum()), COEFFICIENT)
            records["matrix"] = terms.matrix[wanted]
            records["constraint"] = terms.constraint[wanted]
            records["signal"] = terms.wire[wanted]
            value = terms.value[wanted]
            for _ in range(2):  # v R^2: the product with a standard witness is then Montgomery
                _cpu.to_montgomery(self._curve.name, "scalar", value, value)
            records["value"] = value
            self._file.write(records.tobytes())
            count += len(records)
        end = self._file.tell()
        self._file.seek(begin)
        self._head(4, 4 + count * COEFFICIENT.itemsize)
        self._file.write(struct.pack("<I", count))
        self._file.seek(end)

    def _points(self, number: int, name: str, group: int, scalars: Bytes) -> None:
        total = len(scalars)
        self._head(number, total * self._curve.point_bytes(group))
        for start in range(0, total, self._multiples.piece):
            self._progress(name, start, total)
            piece = np.ascontiguousarray(scalars[start : start + self._multiples.piece])
            self._file.write(self._multiples(group, piece).data)
        self._progress(name, total, total)


def _scalar(value: int) -> Bytes:
    return np.frombuffer(value.to_bytes(SCALAR_BYTES, "little"), np.uint8).reshape(1, -1)
