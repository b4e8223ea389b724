"""The reduction from a satisfied circuit to one vector of quotient values.

With A(X), B(X), C(X) of degree below N that take the values (A w)_i, (B w)_i, (C w)_i at the N-th
roots of unity, the witness satisfies the circuit just if Z(X) = X^N - 1 divides A B - C (Gennaro,
Gentry, Parno, Raykova, "Quadratic span programs and succinct NIZKs without PCPs", 2013). At the odd
2N-th roots, the coset omega_2N H of the N-th roots H, Z is the constant -2: so the values of
A B - C there are those of the quotient up to a constant, which the key's H points absorb.
They are a Lagrange basis of that coset, so that no third transform back is needed.
"""

from typing import TYPE_CHECKING

import bigmem
from prover.backends.base import Bytes
from prover.curves import Curve

if TYPE_CHECKING:
    from prover.backends.host import HostBackend


def quotient_values(
    curve: Curve, a: Bytes, b: Bytes, c: Bytes, out: Bytes, *, backend: "HostBackend"
) -> None:
    """The scalars h of the H points: A B - C on the odd coset.

    Parameters
    ----------
    a, b, c
        A w, B w and their product in Montgomery form, shape (N, 32); overwritten. A zkey has no C
        matrix: for a bad witness this c is not C w, and the proof is invalid.
    out
        Becomes h in standard form; may be ``a``.
    """
    with bigmem.layer("ntt"):
        for vector in (a, b, c):
            backend.odd_coset(curve, vector)
        backend.quotient(curve, a, b, c, out)
