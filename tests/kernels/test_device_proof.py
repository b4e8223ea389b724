"""A whole proof by the CUDA backend, every kernel of the device run on the host."""

from emulated_device import WholeDevice

from prover.backends import get_backend
from prover.backends.cuda.backend import CudaBackend
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.groth16 import prove


def test_a_proof_equals_the_cpu_backends(multiplier, libraries):
    key, witness = ProvingKey.open(multiplier.key), Witness.open(multiplier.witness)
    backends = (get_backend("cpu"), CudaBackend(WholeDevice(libraries)))
    ours, theirs = (prove(key, witness, backend=b, r=3, s=key.curve.r - 5) for b in backends)
    assert ours.a.tobytes() == theirs.a.tobytes()
    assert ours.b.tobytes() == theirs.b.tobytes()
    assert ours.c.tobytes() == theirs.c.tobytes()
