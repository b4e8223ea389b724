"""The prover against a slow one that shares nothing with it but the file's bytes.

Points by py_ecc, scalars by Python integers, transforms by Lagrange interpolation.
"""

import struct

import py_ecc.optimized_bls12_381
import py_ecc.optimized_bn128
import pytest

from prover.backends import get_backend
from prover.formats.proof_json import decode_coordinates
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.groth16 import prove

LIBRARIES = {"bn128": py_ecc.optimized_bn128, "bls12381": py_ecc.optimized_bls12_381}


class SlowProver:
    """The equations of the protocol over one key's sections."""

    def __init__(self, curve, raw, values):
        self.library = LIBRARIES[curve]
        self.raw = raw
        self.n = struct.unpack_from("<I", raw[2])[0]
        self.q = int.from_bytes(raw[2][4 : 4 + self.n], "little")
        self.r = int.from_bytes(raw[2][8 + self.n : 40 + self.n], "little")
        self.signals, self.public, self.domain = struct.unpack_from("<3I", raw[2], 40 + self.n)
        self.w = [int.from_bytes(values[i : i + 32], "little") for i in range(0, len(values), 32)]

    def points(self, data, group):
        size = 2 * group * self.n
        return [self.point(data[i : i + size], group) for i in range(0, len(data), size)]

    def point(self, data, group):
        library = self.library
        if not any(data):
            return library.Z1 if group == 1 else library.Z2
        inverse = pow(1 << 8 * self.n, -1, self.q)
        c = [
            int.from_bytes(data[i : i + self.n], "little") * inverse % self.q
            for i in range(0, len(data), self.n)
        ]
        if group == 1:
            return library.FQ(c[0]), library.FQ(c[1]), library.FQ(1)
        return library.FQ2(c[:2]), library.FQ2(c[2:]), library.FQ2.one()

    def sum(self, *terms):
        total = None
        for point, scalar in terms:
            term = self.library.multiply(point, scalar)
            total = term if total is None else self.library.add(total, term)
        return total

    def weighted(self, section, group):
        return zip(self.points(self.raw[section], group), self.w, strict=True)

    def rows(self):
        """A w and B w at the N-th roots of unity."""
        result = [[0] * self.domain, [0] * self.domain]
        inverse = pow(1 << 512, -1, self.r)
        for i in range(struct.unpack_from("<I", self.raw[4])[0]):
            matrix, row, signal, value = struct.unpack_from("<III32s", self.raw[4], 4 + 44 * i)
            v = int.from_bytes(value, "little") * inverse
            result[matrix][row] = (result[matrix][row] + v * self.w[signal]) % self.r
        return result

    def on_odd_roots(self, values):
        """By the barycentric form of Lagrange's interpolation."""
        r, n = self.r, self.domain
        double = pow(5, (r - 1) // (2 * n), r)  # 5 generates both curves' roots of unity
        roots = [pow(double, 2 * i, r) for i in range(n)]
        return [
            sum(
                value * root * pow(n * (x - root), -1, r)
                for value, root in zip(values, roots, strict=True)
            )
            * (pow(x, n, r) - 1)
            % r
            for x in (pow(double, 2 * i + 1, r) for i in range(n))
        ]

    def prove(self, r, s):
        raw, w = self.raw, self.w
        a, b = self.rows()
        c = [x * y % self.r for x, y in zip(a, b, strict=True)]
        a, b, c = map(self.on_odd_roots, (a, b, c))
        h = [(x * y - z) % self.r for x, y, z in zip(a, b, c, strict=True)]
        head, n = raw[2][52 + self.n :], self.n
        alpha1, beta1 = self.points(head[: 4 * n], 1)
        beta2, _ = self.points(head[4 * n : 12 * n], 2)
        delta1 = self.point(head[12 * n : 14 * n], 1)
        delta2 = self.point(head[14 * n : 18 * n], 2)
        pi_a = self.sum((alpha1, 1), (delta1, r), *self.weighted(5, 1))
        pi_b1 = self.sum((beta1, 1), (delta1, s), *self.weighted(6, 1))
        pi_b = self.sum((beta2, 1), (delta2, s), *self.weighted(7, 2))
        pi_c = self.sum(
            *zip(self.points(raw[8], 1), w[self.public + 1 :], strict=True),
            *zip(self.points(raw[9], 1), h, strict=True),
            (pi_a, s),
            (pi_b1, r),
            (delta1, -r * s % self.r),
        )
        return [self.affine(point) for point in (pi_a, pi_b, pi_c)]

    def affine(self, point):
        x, y = self.library.normalize(point)
        coordinates = [x, y] if hasattr(x, "n") else [*x.coeffs, *y.coeffs]
        return [int(getattr(c, "n", c)) for c in coordinates]


@pytest.mark.parametrize("name", ["multiplier", "zeropub"])
@pytest.mark.parametrize("blinding", [(0, 0), (0xC0FFEE, 2**250 + 12345)])
def test_equal_proofs(multiplier, sections, name, blinding):
    folder = multiplier.folder.parent / name
    key = ProvingKey.open(folder / "circuit.zkey")
    witness = Witness.open(folder / "witness.wtns")
    slow = SlowProver(
        multiplier.curve,
        sections.read(folder / "circuit.zkey"),
        bytes(sections.read(folder / "witness.wtns")[2]),
    )
    r, s = blinding
    proof = prove(key, witness, backend=get_backend(), r=r, s=s)
    ours = [decode_coordinates(key.curve, point) for point in (proof.a, proof.b, proof.c)]
    assert ours == slow.prove(r, s)
