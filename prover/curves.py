"""The two curves of the prover: primes from their seeds, and what follows from the primes."""

from dataclasses import dataclass
from functools import cached_property

SCALAR_BYTES = 32
"""Bytes of a scalar-field element in every file of either curve (n8r)."""


@dataclass(frozen=True)
class Curve:
    """A pairing-friendly curve with a scalar field of high two-adicity.

    Attributes
    ----------
    name
        As snarkjs writes it: ``"bn128"`` or ``"bls12381"``.
    title
        As people write it.
    q, r
        The primes of the base field and of the group order.
    coordinate_bytes
        Bytes of a base-field element in a file (n8q).
    """

    name: str
    title: str
    q: int
    r: int
    coordinate_bytes: int

    @cached_property
    def two_adicity(self) -> int:
        """The largest k such that 2^k divides r - 1."""
        return ((self.r - 1) & -(self.r - 1)).bit_length() - 1

    @cached_property
    def non_residue(self) -> int:
        """The smallest quadratic non-residue modulo r: its odd powers give the roots of unity."""
        return next(g for g in range(2, self.r) if pow(g, (self.r - 1) // 2, self.r) != 1)

    @property
    def largest_domain(self) -> int:
        """The largest N for which a primitive 2N-th root of unity exists."""
        return 1 << (self.two_adicity - 1)

    def root_of_unity(self, order: int) -> int:
        """Primitive root of unity of a power-of-two ``order``, as snarkjs chooses it.

        Raises
        ------
        ValueError
            If ``order`` is no power of two or has no such root.
        """
        if order < 1 or order & (order - 1) or order > 1 << self.two_adicity:
            raise ValueError(f"{self.title} has no primitive root of unity of order {order}")
        return pow(self.non_residue, (self.r - 1) // order, self.r)

    def point_bytes(self, group: int) -> int:
        """Bytes of an affine point of G1 or G2 in a file."""
        return 2 * group * self.coordinate_bytes


def _barreto_naehrig(u: int) -> tuple[int, int]:
    # Barreto and Naehrig, "Pairing-friendly elliptic curves of prime order", 2005
    r = 36 * u**4 + 36 * u**3 + 18 * u**2 + 6 * u + 1
    return r + 6 * u**2, r


def _barreto_lynn_scott_12(x: int) -> tuple[int, int]:
    # Barreto, Lynn and Scott, "Constructing elliptic curves with prescribed
    # embedding degrees", 2002
    r = x**4 - x**2 + 1
    return (x - 1) ** 2 * r // 3 + x, r


BN254 = Curve("bn128", "BN254", *_barreto_naehrig(4965661367192848881), coordinate_bytes=32)
BLS12_381 = Curve(
    "bls12381",
    "BLS12-381",
    *_barreto_lynn_scott_12(-0xD201_0000_0001_0000),
    coordinate_bytes=48,
)

CURVES = {curve.name: curve for curve in (BN254, BLS12_381)}
"""Both curves by snarkjs's name."""
