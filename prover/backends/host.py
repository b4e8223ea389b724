"""Backends whose vectors are in host memory: the steps of a proof that they are asked for."""

from abc import abstractmethod

import numpy as np

import bigmem
from prover import qap
from prover.backends.base import ALLOCATE, DROP, Backend, Bytes, Mask, Operands, Sums
from prover.curves import SCALAR_BYTES, Curve
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey


class HostBackend(Backend):
    """Arithmetic on host arrays in the form of a zkey.

    Scalars are rows of 32 bytes, arrays C-contiguous, of any alignment. Vectors are allocated by
    the caller: which allocator they come from is what this project is about.

    Attributes
    ----------
    threads
        For what it does; 0 for every core.
    """

    threads: int = 0

    @abstractmethod
    def products(
        self, curve: Curve, coefficients: Bytes, witness: Bytes, a: Bytes, b: Bytes, c: Bytes
    ) -> None:
        """Overwrite a and b with the matrices 0 and 1 of a key times the witness, c with a b.

        ``coefficients`` has shape (n, 44), ``witness`` is in standard form, ``a``, ``b`` and ``c``
        of shape (N, 32) become Montgomery form.
        """

    @abstractmethod
    def odd_coset(self, curve: Curve, x: Bytes) -> None:
        """In place, from values at the N-th roots of unity to values at the odd 2N-th roots."""

    @abstractmethod
    def quotient(self, curve: Curve, a: Bytes, b: Bytes, c: Bytes, out: Bytes) -> None:
        """Overwrite ``out``, which may be a, with a b - c pointwise, in standard form."""

    @abstractmethod
    def msm_workspace(self, curve: Curve, group: int, n: int) -> int:
        """Bytes of workspace for `msm` of ``n`` points."""

    @abstractmethod
    def msm(
        self,
        curve: Curve,
        group: int,
        points: Bytes,
        scalars: Bytes,
        workspace: Bytes,
        finite: Mask | None = None,
    ) -> Bytes:
        """Sum of scalars (standard form) times points, shape (1, bytes of a point).

        ``finite`` tells which points are not infinity, if that is known.
        """

    def sums(
        self, key: ProvingKey, witness: Witness, allocator: bigmem.Allocator | None = None
    ) -> Sums:
        """See `Backend`; the vectors are w, a, b, c (which becomes h) and the sums' workspaces."""
        with bigmem.layer("sums"):
            with bigmem.layer(ALLOCATE):
                w = _empty(witness.values.shape, allocator)
            with bigmem.layer("witness"):
                witness.read(w, self.threads)
            return self._sums(key, Operands(w), allocator)

    def sums_of(
        self, key: ProvingKey, operands: Operands, allocator: bigmem.Allocator | None = None
    ) -> Sums:
        """See `Backend`; without a, b and c, these are vectors of the backend like the others."""
        with bigmem.layer("sums"):
            return self._sums(key, operands, allocator)

    def _sums(
        self, key: ProvingKey, operands: Operands, allocator: bigmem.Allocator | None
    ) -> Sums:
        def msm(
            name: str, group: int, points: Bytes, scalars: Bytes, finite: Mask | None = None
        ) -> Bytes:
            with bigmem.layer(ALLOCATE):
                workspace = _empty((self.msm_workspace(key.curve, group, len(points)),), allocator)
            with bigmem.layer(name):
                result = self.msm(key.curve, group, points, scalars, workspace, finite)
                with bigmem.layer(DROP):
                    key.drop(points)
            del workspace
            return result

        with bigmem.layer("NTT/MSM-H"):
            h = self._quotient_values(key, operands, allocator)
            sum_h = msm("msm H", 1, key.h1, h)
            del h
        w = operands.w
        sum_a = msm("msm A", 1, key.a1, w, operands.finite_a)
        sum_b1 = msm("msm B1", 1, key.b1, w, operands.finite_b)
        with bigmem.layer("B in G2"):
            sum_b2 = msm("msm B2", 2, key.b2, w, operands.finite_b)
        sum_c = msm("msm C", 1, key.c1, w[key.public + 1 :])
        return Sums(a=sum_a, b1=sum_b1, b2=sum_b2, c=sum_c, h=sum_h)

    def _quotient_values(
        self, key: ProvingKey, operands: Operands, allocator: bigmem.Allocator | None
    ) -> Bytes:
        """The scalars h: the memory of a, or a vector of their own if a, b and c are given."""
        shape = (key.domain, SCALAR_BYTES)
        vectors = operands.vectors()
        if vectors is not None:
            with bigmem.layer(ALLOCATE):
                h = _empty(shape, allocator)
            qap.quotient_values(key.curve, *vectors, h, backend=self)
            del vectors
            operands.read()
            return h
        with bigmem.layer(ALLOCATE):
            a, b, c = (_empty(shape, allocator) for _ in range(3))
        with bigmem.layer("sparse"):
            self.products(key.curve, key.coefficients, operands.w, a, b, c)
            key.drop(key.coefficients)
        qap.quotient_values(key.curve, a, b, c, a, backend=self)
        return a


def _empty(shape: tuple[int, ...], allocator: bigmem.Allocator | None) -> Bytes:
    return bigmem.empty(shape, dtype=np.uint8, allocator=allocator)
