"""Backends whose vectors are in host memory: the steps of a proof that they are asked for."""

from abc import abstractmethod

import numpy as np

import bigmem
from prover import qap
from prover.backends.base import Backend, Bytes, Sums
from prover.curves import Curve
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey


class HostBackend(Backend):
    """Arithmetic on host arrays in the form of a zkey.

    Scalars are rows of 32 bytes, arrays C-contiguous, of any alignment. Vectors are allocated by
    the caller: which allocator they come from is what this project is about.
    """

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

    def sums(
        self, key: ProvingKey, witness: Witness, allocator: bigmem.Allocator | None = None
    ) -> Sums:
        """See `Backend`; the vectors are w, a, b, c (which becomes h) and the sums' workspaces."""

        def empty(shape: tuple[int, ...]) -> Bytes:
            return bigmem.empty(shape, dtype=np.uint8, allocator=allocator)

        def msm(name: str, group: int, points: Bytes, scalars: Bytes) -> Bytes:
            workspace = empty((self.msm_workspace(key.curve, group, len(points)),))
            with bigmem.layer(name):
                result = self.msm(key.curve, group, points, scalars, workspace)
            del workspace
            key.drop(points)
            return result

        with bigmem.layer("witness"):
            w = empty(witness.values.shape)
            w[:] = witness.values
            witness.drop()
        h = qap.quotient_values(
            key.curve, key.coefficients, w, key.domain, backend=self, empty=empty
        )
        key.drop(key.coefficients)
        sum_h = msm("msm H", 1, key.h1, h)
        del h
        return Sums(
            h=sum_h,
            a=msm("msm A", 1, key.a1, w),
            b1=msm("msm B1", 1, key.b1, w),
            b2=msm("msm B2", 2, key.b2, w),
            c=msm("msm C", 1, key.c1, w[key.public + 1 :]),
        )
