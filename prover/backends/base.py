"""What the protocol asks of a backend: the sums of a proof, and group operations."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

import bigmem
from prover.curves import Curve

if TYPE_CHECKING:
    from prover.formats.wtns import Witness
    from prover.formats.zkey import ProvingKey

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Sums:
    """The sums of scalars times points that a proof is made of.

    Each is a point, shape (1, bytes of a point).

    Attributes
    ----------
    a, b1, b2
        Sums of w_i A_i, of w_i B_i in G1, and of w_i B_i in G2, over all signals.
    c
        Sum of w_i C_i over the private signals.
    h
        Sum of h_i H_i over the domain.
    """

    a: Bytes
    b1: Bytes
    b2: Bytes
    c: Bytes
    h: Bytes


class Backend(ABC):
    """Arithmetic of one proof.

    Points are rows of `Curve.point_bytes`, affine and little-endian, coordinates in Montgomery
    form, infinity all zero. Nothing is validated here.
    """

    name: ClassVar[str]

    @abstractmethod
    def sums(
        self, key: "ProvingKey", witness: "Witness", allocator: bigmem.Allocator | None = None
    ) -> Sums:
        """Everything of a proof whose cost grows with the circuit.

        Its steps are the layers ``witness``, ``sparse``, ``ntt``, and ``msm H``, ``A``, ``B1``,
        ``B2``, ``C``. The witness and the key, which are mapped files, lose their resident pages.

        Parameters
        ----------
        key, witness
            Checked, and for the same circuit.
        allocator
            Where vectors in host memory come from; None for the process default.
        """

    @abstractmethod
    def add(self, curve: Curve, group: int, p: Bytes, q: Bytes) -> Bytes:
        """Sum of two points, shape (1, bytes of a point)."""

    @abstractmethod
    def scale(self, curve: Curve, group: int, p: Bytes, scalar: int) -> Bytes:
        """``scalar``, from 0 to r - 1, times a point."""
