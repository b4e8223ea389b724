"""Groth16 arithmetic on the CPU: the native half of the CPU backend.

Conventions. ``curve`` is ``"bn128"`` or ``"bls12381"``, ``group`` is 1 or 2. Field elements and
points are rows of bytes exactly as a zkey holds them (little-endian; G1 is x | y, G2 is
x.c0 | x.c1 | y.c0 | y.c1; coordinates in Montgomery form; infinity is all zero). Arrays are
C-contiguous ``uint8`` of shape (n, row bytes), of any alignment, so that views of a memmap pass
without a copy. ``threads=0`` means every core this process may run on. Every function releases
the GIL while it computes and raises ValueError for shapes that do not fit, before it computes.
Nothing here validates values unless its name says so.
"""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

def default_threads() -> int: ...
def arithmetic() -> str:
    """Name of the multiplication row chosen for this CPU: "portable" or "adx"."""

# Scalar-field vectors, shape (n, 32)
def sparse_product(
    curve: str, coefficients: Bytes, witness: Bytes, a: Bytes, b: Bytes, threads: int = 0
) -> None:
    """a, b <- matrices 0 and 1 of zkey section 4 (rows of 44 bytes) times the witness.

    ``witness`` is standard, ``a`` and ``b`` (n, 32) are overwritten in Montgomery form. Indices
    must have been validated.
    """

def sparse_abc(
    curve: str, coefficients: Bytes, witness: Bytes, a: Bytes, b: Bytes, c: Bytes, threads: int = 0
) -> None:
    """`sparse_product`, and c <- their pointwise Montgomery product, in one pass."""

def copy(x: Bytes, out: Bytes, threads: int = 0) -> None:
    """Copy x to out: the threads share the page faults of either."""

def multiply(curve: str, x: Bytes, y: Bytes, out: Bytes, threads: int = 0) -> None:
    """Pointwise Montgomery product; ``out`` may be ``x`` or ``y``."""

def odd_coset(curve: str, x: Bytes, threads: int = 0) -> None:
    """In place: values on the N-th roots of unity -> values at the odd 2N-th roots.

    x <- NTT(omega_2N^i . iNTT(x)_i), natural order in and out, N = len(x) a power of two.
    """

def quotient(curve: str, a: Bytes, b: Bytes, c: Bytes, out: Bytes, threads: int = 0) -> None:
    """Store a . b - c pointwise, in standard form, in ``out``, which may be a."""

def find_not_below_order(curve: str, x: Bytes, threads: int = 0) -> int:
    """First row that is not below the scalar field's order, or -1."""

# Points, shape (n, 2 n8q) or (n, 4 n8q)
def msm_workspace(curve: str, group: int, n: int, threads: int = 0) -> int:
    """Bytes of workspace (digits and buckets) that ``msm`` of ``n`` points wants."""

def msm(
    curve: str, group: int, points: Bytes, scalars: Bytes, workspace: Bytes, threads: int = 0
) -> Bytes:
    """Sum of scalars (standard form) times affine points, as one affine row."""

class PointSum:
    """The sum that ``msm`` makes, phase by phase: each is called once, in this order.

    Parameters
    ----------
    finite
        Shape (n, 1), 0 for points that are infinity, which are then left out from the start.
    """

    def __init__(
        self,
        curve: str,
        group: int,
        points: Bytes,
        scalars: Bytes,
        workspace: Bytes,
        finite: Bytes | None = None,
        threads: int = 0,
    ) -> None: ...
    def split(self) -> None:
        """Split the scalars into zeros, ones (1 and -1) and dense ones."""

    def prepare(self) -> None:
        """Cut the dense scalars into digits."""

    def add_ones(self) -> None:
        """Add up the points of the ones."""

    def add_dense(self) -> Bytes:
        """Add up the points of the dense scalars; the sum of all, as one affine row."""

def add(curve: str, group: int, p: Bytes, q: Bytes) -> Bytes: ...
def negate(curve: str, group: int, p: Bytes) -> Bytes: ...
def scale(curve: str, group: int, p: Bytes, scalar: Bytes) -> Bytes:
    """``scalar`` (32 bytes, standard form) times one affine point."""

def generator(curve: str, group: int) -> Bytes: ...
def fixed_base(
    curve: str, group: int, base: Bytes, scalars: Bytes, out: Bytes, threads: int = 0
) -> None:
    """out[i] <- scalars[i] (standard form) times one base point, affine."""

def find_off_curve(curve: str, group: int, points: Bytes, threads: int = 0) -> int:
    """First row that has a coordinate >= q or is neither on the curve nor infinity, or -1."""

def mark_finite(curve: str, group: int, points: Bytes, out: Bytes, threads: int = 0) -> None:
    """out[i] <- 1 where point i is not infinity, else 0; ``out`` of shape (n, 1)."""

def find_outside_subgroup(curve: str, group: int, points: Bytes, threads: int = 0) -> int:
    """First row, assumed on the curve, that is outside the subgroup of order r, or -1."""

# Form conversions, coordinates of shape (n, n8q) or scalars of shape (n, 32)
def to_montgomery(curve: str, field: str, x: Bytes, out: Bytes) -> None:
    """``field`` is "base" or "scalar"."""

def from_montgomery(curve: str, field: str, x: Bytes, out: Bytes) -> None: ...

# Pairings
def pairing_product_is_one(curve: str, g1: Bytes, g2: Bytes) -> bool:
    """Whether the product of e(g1[i], g2[i]) is one; affine Montgomery points, infinity allowed."""

def pairing_product(curve: str, g1: Bytes, g2: Bytes) -> Bytes:
    """The product of e(g1[i], g2[i]), shape (12 n8q,), Montgomery form.

    These are the coefficients in Fp of Fp12 = Fp6[w] / (w^2 - v), Fp6 = Fp2[v] / (v^3 - xi), from
    low to high. Its fixed power is the one that snarkjs writes as vk_alphabeta_12.
    """

# Setup. Scalars are standard unless said otherwise; single scalars have shape (1, 32).
def lagrange(
    curve: str,
    omega: Bytes,
    order: int,
    first: int,
    step: int,
    tau: Bytes,
    scale: Bytes,
    out: Bytes,
    threads: int = 0,
) -> None:
    """out[i] <- scale L_k(tau), k = first + i step, in Montgomery form.

    L_k(tau) = (tau^order - 1) omega^k / (order (tau - omega^k)), the Lagrange basis of the powers
    of ``omega``, a primitive root of unity of this ``order``, of which tau is none.
    """

def add_to_columns(
    curve: str,
    matrix: NDArray[np.uint8],
    constraint: NDArray[np.uint32],
    wire: NDArray[np.uint32],
    value: Bytes,
    weights: Bytes,
    columns: Bytes,
) -> None:
    """columns[matrix, wire] += value weights[constraint] for every term.

    ``weights`` (n, 32) are in Montgomery form; ``columns`` has shape (3, wires, 32). Indices must
    have been validated.
    """

def weighted_sum(
    curve: str, weights: Bytes, a: Bytes, b: Bytes, c: Bytes, out: Bytes, threads: int = 0
) -> None:
    """Store weights[0] a + weights[1] b + weights[2] c in ``out``; ``weights`` is (3, 32)."""

# For tests only
def _use_arithmetic(name: str) -> None:
    """Compute with "portable" or "adx" from now on, in the whole process."""

def _test_operation(
    arithmetic: str, curve: str, set: str, operation: str, x: Bytes, y: Bytes, out: Bytes
) -> None:
    """out[i] <- operation(x[i], y[i]) in "scalar", "base", "extension", "g1" or "g2".

    ``arithmetic`` may also be "portable32", or "ptx": the device's carry chains, on this CPU.
    """

def _emulate(
    curve: str, kernel: str, blocks: int, threads: int, arguments: list[np.ndarray | int]
) -> None:
    """Run one of the device's kernels by the host compiler's build of its parts.

    The arguments are those of the launch: C-contiguous arrays, whose sizes nobody checks, and
    integers.
    """
