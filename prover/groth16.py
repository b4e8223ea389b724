"""Groth16 (Groth, "On the size of pairing-based non-interactive arguments", 2016), proving.

With the key's points A_i, B_i (in G1 and G2), C_i, H_i, the witness w and the quotient values h:

    A = alpha + sum w_i A_i + r delta                                 in G1
    B = beta  + sum w_i B_i + s delta                                 in G2, and again in G1
    C = sum_{i private} w_i C_i + sum h_i H_i + s A + r B - r s delta    in G1
"""

import secrets
from dataclasses import dataclass
from functools import reduce

import bigmem
from prover.backends.base import Backend, Bytes, Operands, Sums
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

    Its steps are layers inside the layer ``prove``; their gaps, and the layers ``allocate``, are
    what allocating and releasing cost, and a check of the key that nobody made before.

    Parameters
    ----------
    allocator
        Where the vectors of this proof that are in host memory come from. None for the process
        default.
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
    return _assemble(key, backend.sums(key, witness, allocator), backend, r, s)


@bigmem.layer("prove")
def prove_operands(
    key: ProvingKey,
    operands: Operands,
    *,
    backend: Backend,
    allocator: bigmem.Allocator | None = None,
    r: int | None = None,
    s: int | None = None,
) -> Proof:
    """As `prove`, from a witness in memory, perhaps with the vectors a, b and c.

    The operands must be those of a witness that `match` accepts.
    """
    key.check()
    return _assemble(key, backend.sums_of(key, operands, allocator), backend, r, s)


def _assemble(key: ProvingKey, sums: Sums, backend: Backend, r: int | None, s: int | None) -> Proof:
    def add(group: int, *points: Bytes) -> Bytes:
        return reduce(lambda p, q: backend.add(key.curve, group, p, q), points)

    def scale(group: int, point: Bytes, scalar: int) -> Bytes:
        return backend.scale(key.curve, group, point, scalar)

    with bigmem.layer("epilogue"), bigmem.layer("assembly"):
        r = secrets.randbelow(key.curve.r) if r is None else r
        s = secrets.randbelow(key.curve.r) if s is None else s
        minus_rs = -r * s % key.curve.r
        a = add(1, key.alpha1, sums.a, scale(1, key.delta1, r))
        b = add(2, key.beta2, sums.b2, scale(2, key.delta2, s))
        b1 = add(1, key.beta1, sums.b1, scale(1, key.delta1, s))
        c = add(1, sums.c, sums.h, scale(1, a, s), scale(1, b1, r), scale(1, key.delta1, minus_rs))
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


def public_signals(key: ProvingKey, values: Bytes) -> list[int]:
    """The values of the public signals among a witness's, in the order of public.json."""
    rows = values[1 : key.public + 1]
    return [int.from_bytes(row.tobytes(), "little") for row in rows]
