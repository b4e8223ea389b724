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
Mask = NDArray[np.bool_]

GROUPS = ("NTT/MSM-H", "B in G2", "epilogue")
"""Layers around stages of a proof."""

ALLOCATE = "allocate"
"""A layer that takes host memory for vectors and workspaces."""

DROP = "drop"

PHASES = ("split vectors", "prep MSM", "batch addition", "tail MSMs", DROP)
"""Layers in a stage that is a sum: the scalars are told apart into zeros, ones and others, the
others are cut into digits, then the points of the ones are added up and those of the others.
Points that are not where they are added up come there in ``prep MSM``; those that were read where
they are lose their resident pages at the end."""


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


@dataclass(eq=False, repr=False)  # whoever prints it must not see the witness
class Operands:
    """What the sums of a proof are made of, in host memory.

    Attributes
    ----------
    w
        The witness in standard form, shape (signals, 32).
    finite_a, finite_b
        Shape (signals,): whether a signal's point of A, of B, is not infinity. None if nobody has
        looked.
    sole
        Whether nobody else's work on a GPU uses the memory of w, a, b and c. If it is pinned, a
        backend may then let it be reused as soon as it has been copied and released.
    """

    w: Bytes
    finite_a: Mask | None = None
    finite_b: Mask | None = None
    sole: bool = False

    def vectors(self) -> tuple[Bytes, Bytes, Bytes] | None:
        """The vectors a, b and c of shape (N, 32) in Montgomery form, if somebody has made them.

        They may be overwritten.
        """
        return None

    def read(self) -> None:
        """Be told that a, b and c have been read and are not referred to any more."""


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

        It is the layer ``sums``. Its stages inside are ``witness``, ``sparse``, ``ntt``, and ``msm
        H``, ``A``, ``B1``, ``B2``, ``C``; around some of them are `GROUPS`, in the sums `PHASES`,
        and before those that need host memory is `ALLOCATE`.
        A device may have to get its kernels ready before them, which is a stage ``kernels``.
        The witness and the key, which are mapped files, lose their resident pages.

        Parameters
        ----------
        key, witness
            Checked, and for the same circuit.
        allocator
            Where vectors in host memory come from; None for the process default.
        """

    @abstractmethod
    def sums_of(
        self, key: "ProvingKey", operands: Operands, allocator: bigmem.Allocator | None = None
    ) -> Sums:
        """As `sums`, of a witness that is in memory.

        If the operands have a, b and c, nothing is multiplied: where they have to be copied, the
        stage ``transfer`` takes the place of ``sparse``.
        """

    def device_seconds(self) -> dict[str, float]:
        """What a device has spent in each stage so far, by its own clock; empty without one."""
        return {}

    @abstractmethod
    def add(self, curve: Curve, group: int, p: Bytes, q: Bytes) -> Bytes:
        """Sum of two points, shape (1, bytes of a point)."""

    @abstractmethod
    def scale(self, curve: Curve, group: int, p: Bytes, scalar: int) -> Bytes:
        """``scalar``, from 0 to r - 1, times a point."""
