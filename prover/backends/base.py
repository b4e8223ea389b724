"""What the protocol asks of a backend: vectors of scalars, sums of points, nothing else."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from prover.curves import Curve

Bytes = NDArray[np.uint8]


class Backend(ABC):
    """Arithmetic on host arrays in the form of a zkey.

    Scalars are rows of 32 bytes, affine points rows of `Curve.point_bytes`; all little-endian,
    coordinates in Montgomery form, infinity all zero, arrays C-contiguous, of any alignment.
    Nothing is validated here. Vectors are allocated by the caller: which allocator they come from
    is what this project is about.
    """

    name: ClassVar[str]

    @abstractmethod
    def sparse_product(
        self, curve: Curve, coefficients: Bytes, witness: Bytes, a: Bytes, b: Bytes
    ) -> None:
        """Overwrite a and b with the matrices 0 and 1 of a key times the witness.

        ``coefficients`` has shape (n, 44), ``witness`` is in standard form, ``a`` and ``b`` of
        shape (N, 32) become Montgomery form.
        """

    @abstractmethod
    def multiply(self, curve: Curve, x: Bytes, y: Bytes, out: Bytes) -> None:
        """Pointwise Montgomery product into ``out``, which may be an operand."""

    @abstractmethod
    def odd_coset(self, curve: Curve, x: Bytes) -> None:
        """In place, from values at the N-th roots of unity to values at the odd 2N-th roots."""

    @abstractmethod
    def quotient(self, curve: Curve, a: Bytes, b: Bytes, c: Bytes) -> None:
        """Overwrite a with a b - c pointwise, in standard form."""

    @abstractmethod
    def msm_workspace(self, curve: Curve, group: int, n: int) -> int:
        """Bytes of workspace for `msm` of ``n`` points."""

    @abstractmethod
    def msm(
        self, curve: Curve, group: int, points: Bytes, scalars: Bytes, workspace: Bytes
    ) -> Bytes:
        """Sum of scalars (standard form) times points, shape (1, bytes of a point)."""

    @abstractmethod
    def add(self, curve: Curve, group: int, p: Bytes, q: Bytes) -> Bytes:
        """Sum of two points, shape (1, bytes of a point)."""

    @abstractmethod
    def scale(self, curve: Curve, group: int, p: Bytes, scalar: int) -> Bytes:
        """``scalar``, from 0 to r - 1, times a point."""
