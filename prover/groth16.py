"""Groth16 (Groth, "On the size of pairing-based non-interactive arguments", 2016), proving.

With the key's points A_i, B_i (in G1 and G2), C_i, H_i, the witness w and the quotient values h:

    A = alpha + sum w_i A_i + r delta                                 in G1
    B = beta  + sum w_i B_i + s delta                                 in G2, and again in G1
    C = sum_{i private} w_i C_i + sum h_i H_i + s A + r B - r s delta    in G1
"""

import secrets
from dataclasses import dataclass
from functools import reduce

import numpy as np

import bigmem
from prover import qap
from prover.backends.base import Backend, Bytes
from prover.curves import Curve
from prover.errors import MismatchedFiles
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey


@dataclass(frozen=True)
class Proof:
    """A proof: affine points in Montgomery form, each of shape (1, bytes of a point)."""

    curve: Curve
    a: Bytes
    b: Bytes
    c: Bytes


@bigmem.layer("prove")
def prove(
    key: ProvingKey,
    witness: Witness,
    *,
    backend: Backend,
    allocator: bigmem.Allocator | None = None,
    r: int | None = None,
    s: int | None = None,
) -> Proof:
    """Prove that the witness satisfies the circuit of the key.

    The proof of a witness that does not is invalid; nothing here notices. See
    `prover.pipeline.single.prove`.

    Its steps are layers inside the layer ``prove``, whose gap is what allocating and releasing
    cost, and a check of the key that nobody made before.

    Parameters
    ----------
    allocator
        Where the vectors of this proof come from: witness, a, b, c (which becomes h), and the
        digits and buckets of each sum. None for the process default.
    r, s
        The blinding scalars, below the group order. Given only by tests: a proof whose r and s
        are known is not zero-knowledge. By default from the operating system's source.

    Raises
    ------
    MalformedFile
        If a value of the key is out of range; looked at once a key.
    MismatchedFiles
        If the witness is for another curve or circuit.
    """
    match(key, witness)
    key.check()
    r = secrets.randbelow(key.curve.r) if r is None else r
    s = secrets.randbelow(key.curve.r) if s is None else s
    sums = _Sums(key, backend, allocator)

    with bigmem.layer("witness"):
        w = sums.empty(witness.values.shape)
        w[:] = witness.values
        witness.drop()
    h = qap.quotient_values(
        key.curve, key.coefficients, w, key.domain, backend=backend, empty=sums.empty
    )
    key.drop(key.coefficients)
    sum_h = sums.msm("msm H", 1, key.h1, h)
    del h
    sum_a = sums.msm("msm A", 1, key.a1, w)
    sum_b1 = sums.msm("msm B1", 1, key.b1, w)
    sum_b2 = sums.msm("msm B2", 2, key.b2, w)
    sum_c = sums.msm("msm C", 1, key.c1, w[key.public + 1 :])
    del w

    with bigmem.layer("assembly"):
        minus_rs = -r * s % key.curve.r
        a = sums.add(1, key.alpha1, sum_a, sums.scale(1, key.delta1, r))
        b = sums.add(2, key.beta2, sum_b2, sums.scale(2, key.delta2, s))
        b1 = sums.add(1, key.beta1, sum_b1, sums.scale(1, key.delta1, s))
        c = sums.add(
            1,
            sum_c,
            sum_h,
            sums.scale(1, a, s),
            sums.scale(1, b1, r),
            sums.scale(1, key.delta1, minus_rs),
        )
    return Proof(key.curve, a, b, c)


def match(key: ProvingKey, witness: Witness) -> None:
    """Refuse a witness that is not for the circuit of the key.

    Raises
    ------
    MismatchedFiles
    """
    if witness.curve != key.curve:
        raise MismatchedFiles(
            f"{witness.path}: is over {witness.curve.name}, but {key.path} is over {key.curve.name}"
        )
    if len(witness.values) != key.signals:
        raise MismatchedFiles(
            f"{witness.path}: holds {len(witness.values)} signals, but the circuit of {key.path} "
            f"has {key.signals}"
        )


def public_signals(key: ProvingKey, witness: Witness) -> list[int]:
    """The values of the public signals, in the order of public.json."""
    rows = witness.values[1 : key.public + 1]
    return [int.from_bytes(row.tobytes(), "little") for row in rows]


class _Sums:
    """The group operations of one proof, and the memory they run in."""

    def __init__(
        self,
        key: ProvingKey,
        backend: Backend,
        allocator: bigmem.Allocator | None,
    ) -> None:
        self._key = key
        self._backend = backend
        self._allocator = allocator

    def empty(self, shape: tuple[int, ...]) -> Bytes:
        return bigmem.empty(shape, dtype=np.uint8, allocator=self._allocator)

    def msm(self, name: str, group: int, points: Bytes, scalars: Bytes) -> Bytes:
        curve = self._key.curve
        workspace = self.empty((self._backend.msm_workspace(curve, group, len(points)),))
        with bigmem.layer(name):
            result = self._backend.msm(curve, group, points, scalars, workspace)
        del workspace
        self._key.drop(points)
        return result

    def add(self, group: int, *points: Bytes) -> Bytes:
        return reduce(lambda p, q: self._backend.add(self._key.curve, group, p, q), points)

    def scale(self, group: int, point: Bytes, scalar: int) -> Bytes:
        return self._backend.scale(self._key.curve, group, point, scalar)
