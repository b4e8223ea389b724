"""One proof, checked before anyone sees it."""

from dataclasses import dataclass

import bigmem
from prover import groth16
from prover.backends.base import Backend
from prover.errors import MalformedFile, UnsatisfiedCircuit
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.groth16 import Proof
from prover.verify import Unverifiable, VerificationKey, verify


@dataclass(frozen=True)
class Statement:
    """A proof with the public signals that it is about."""

    proof: Proof
    public: list[int]


def prove(
    key: ProvingKey,
    witness: Witness,
    *,
    backend: Backend,
    allocator: bigmem.Allocator | None = None,
    check: bool = True,
    r: int | None = None,
    s: int | None = None,
) -> Statement:
    """Prove, and check the proof against the key's verification key.

    Parameters
    ----------
    check
        False skips the check: the proof of a bad witness is then returned like any other.

    Other parameters are those of `prover.groth16.prove`.

    Raises
    ------
    UnsatisfiedCircuit
        If the proof does not verify, which for a sound key means a bad witness.
    MalformedFile
        Also if the proof shows that a point of the key is outside its subgroup.
    MismatchedFiles
    """
    proof = groth16.prove(key, witness, backend=backend, allocator=allocator, r=r, s=s)
    public = groth16.public_signals(key, witness.values)
    if check:
        check_proof(key, proof, public, witness.path)
    return Statement(proof, public)


@bigmem.layer("check")
def check_proof(key: ProvingKey, proof: Proof, public: list[int], path: str) -> None:
    """Check the proof of the witness in ``path`` against the key's verification key.

    Raises
    ------
    UnsatisfiedCircuit, MalformedFile
        See `prove`.
    """
    if not _verify(key, public, proof):
        raise UnsatisfiedCircuit(
            f"{path}: does not satisfy the circuit of {key.path}; make the witness "
            "again, with this circuit's own witness calculator"
        )


def _verify(key: ProvingKey, public: list[int], proof: Proof) -> bool:
    try:
        return verify(VerificationKey.from_zkey(key), public, proof)
    except Unverifiable as error:
        raise MalformedFile(
            key.path, f"leads to a proof whose {error}; prover info --check finds the bad points"
        ) from None
