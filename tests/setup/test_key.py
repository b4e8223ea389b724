"""The key that setup writes, against a slow evaluation of its definition with a known trapdoor."""

import io
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from py_ecc import optimized_bls12_381, optimized_bn128

from prover.curves import CURVES
from prover.formats.r1cs import R1cs
from prover.setup import Trapdoor, write_key

ORACLES: dict[str, Any] = {"bn128": optimized_bn128, "bls12381": optimized_bls12_381}
TRAPDOOR = Trapdoor(
    tau=2**201 + 77, alpha=2**190 + 5, beta=3**120 + 1, delta=2**250 // 7
)  # chosen freely; small enough for both curves


@dataclass
class Slow:
    """A circuit read and evaluated the plain way."""

    data: Any
    r: int
    tau: int

    @cached_property
    def counts(self) -> tuple[int, ...]:
        # wires, outputs, public inputs, private inputs, labels, constraints
        return struct.unpack_from("<IIIIQI", self.data[1], 36)

    @property
    def wires(self) -> int:
        return self.counts[0]

    @property
    def public(self) -> int:
        return self.counts[1] + self.counts[2]

    @property
    def constraints(self) -> int:
        return self.counts[5]

    @cached_property
    def domain(self) -> int:
        n = 1
        while n <= self.constraints + self.public:
            n *= 2
        return n

    @cached_property
    def terms(self) -> list[tuple[int, int, int, int]]:
        found, position, data = [], 0, bytes(self.data[2])
        for row in range(self.constraints):
            for matrix in range(3):
                (count,) = struct.unpack_from("<I", data, position)
                position += 4
                for _ in range(count):
                    (wire,) = struct.unpack_from("<I", data, position)
                    value = int.from_bytes(data[position + 4 : position + 36], "little")
                    found.append((matrix, row, wire, value))
                    position += 36
        assert position == len(data)
        return found + [(0, self.constraints + s, s, 1) for s in range(self.public + 1)]

    def lagrange(self, order: int) -> list[int]:
        """Each basis polynomial at tau, as the product that defines it."""
        omega = pow(5, (self.r - 1) // order, self.r)
        nodes = [pow(omega, k, self.r) for k in range(order)]
        values = []
        for k, node in enumerate(nodes):
            above = below = 1
            for other in nodes[:k] + nodes[k + 1 :]:
                above = above * (self.tau - other) % self.r
                below = below * (node - other) % self.r
            values.append(above * pow(below, -1, self.r) % self.r)
        return values

    @cached_property
    def columns(self) -> list[list[int]]:
        basis = self.lagrange(self.domain)
        columns = [[0] * self.wires for _ in range(3)]
        for matrix, row, wire, value in self.terms:
            columns[matrix][wire] = (columns[matrix][wire] + value * basis[row]) % self.r
        return columns


@pytest.fixture
def built(circuit):
    file = io.BytesIO()
    write_key(file, R1cs.open(circuit.r1cs), TRAPDOOR)
    return circuit, file.getvalue()


def _points(curve_name: str, group: int, data: bytes) -> list[Any]:
    """The points of a section as pairs of integers, None for infinity."""
    q, size = CURVES[curve_name].q, CURVES[curve_name].coordinate_bytes
    back = pow(1 << 8 * size, -1, q)
    numbers = [
        int.from_bytes(data[i : i + size], "little") * back % q for i in range(0, len(data), size)
    ]
    step = 2 * group
    rows = [tuple(numbers[i : i + step]) for i in range(0, len(numbers), step)]
    return [row if any(row) else None for row in rows]


def _expected(curve_name: str, group: int, scalars: list[int]) -> list[Any]:
    oracle = ORACLES[curve_name]
    base = oracle.G1 if group == 1 else oracle.G2
    rows: list[Any] = []
    for scalar in scalars:
        if scalar % CURVES[curve_name].r == 0:
            rows.append(None)
            continue
        x, y = oracle.normalize(oracle.multiply(base, scalar))
        rows.append((int(x), int(y)) if group == 1 else (*map(int, x.coeffs), *map(int, y.coeffs)))
    return rows


def test_every_section_is_what_the_protocol_defines(built, sections, tmp_path: Path) -> None:
    circuit, data = built
    path = tmp_path / "key.zkey"
    path.write_bytes(data)
    key = sections.read(path)
    r, t = CURVES[circuit.curve].r, TRAPDOOR
    slow = Slow(sections.read(circuit.r1cs), r, t.tau)
    a, b, c = slow.columns
    mixed = [(t.beta * x + t.alpha * y + z) % r for x, y, z in zip(a, b, c, strict=True)]
    per_delta = pow(t.delta, -1, r)
    odd = slow.lagrange(2 * slow.domain)[1::2]
    wanted = {
        (3, 1): mixed[: slow.public + 1],
        (5, 1): a,
        (6, 1): b,
        (7, 2): b,
        (8, 1): [x * per_delta % r for x in mixed[slow.public + 1 :]],
        (9, 1): [x * per_delta % r for x in odd],
    }
    for (number, group), scalars in wanted.items():
        got = _points(circuit.curve, group, bytes(key[number]))
        assert len(got) == len(scalars)
        some = slice(None, None, 1 + len(scalars) // 12)  # the oracle is slow
        wanted_points = _expected(circuit.curve, group, scalars[some])
        assert got[some] == wanted_points, f"section {number}"

    size = CURVES[circuit.curve].coordinate_bytes
    head = bytes(key[2])
    assert struct.unpack_from("<III", head, 8 + size + 32) == (
        slow.wires,
        slow.public,
        slow.domain,
    )
    position = 8 + size + 32 + 12
    for group, scalar in ((1, t.alpha), (1, t.beta), (2, t.beta), (2, 1), (1, t.delta)):
        end = position + 2 * group * size
        got = _points(circuit.curve, group, head[position:end])
        assert got == _expected(circuit.curve, group, [scalar])
        position = end
    got = _points(circuit.curve, 2, head[position:])
    assert got == _expected(circuit.curve, 2, [t.delta])


def test_the_coefficients_are_the_circuit_s(built, sections, tmp_path: Path) -> None:
    circuit, data = built
    path = tmp_path / "key.zkey"
    path.write_bytes(data)
    section = bytes(sections.read(path)[4])
    r = CURVES[circuit.curve].r
    slow = Slow(sections.read(circuit.r1cs), r, TRAPDOOR.tau)
    (count,) = struct.unpack_from("<I", section)
    assert len(section) == 4 + 44 * count
    back = pow(1 << 512, -1, r)
    got = [
        (
            *struct.unpack_from("<III", section, at),
            int.from_bytes(section[at + 12 : at + 44], "little"),
        )
        for at in range(4, len(section), 44)
    ]
    got = [(matrix, row, wire, value * back % r) for matrix, row, wire, value in got]
    assert sorted(got) == sorted(term for term in slow.terms if term[0] < 2)
