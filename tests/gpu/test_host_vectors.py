"""Proofs from vectors a, b, c of the host on a GPU, and the engine that makes them."""

import pytest

import bigmem
from prover.backends import get_backend
from prover.backends.cuda.backend import CudaBackend
from prover.backends.cuda.device import Device
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.groth16 import prove
from prover.pipeline.engine import Engine
from prover.pipeline.report import LayerReport
from prover.pipeline.timers import Timers


def bytes_of(proof):
    return proof.a.tobytes() + proof.b.tobytes() + proof.c.tobytes()


@pytest.mark.parametrize("mode", ["normal", "seed"])
@pytest.mark.parametrize("assignments", ["mapped", "pinned"])
def test_every_mode_makes_the_cpus_proofs(circuit, mode, assignments):
    key, witness = ProvingKey.open(circuit.key), Witness.open(circuit.witness)
    backend = CudaBackend(Device())
    allocator = bigmem.make(assignments)
    engine = Engine(key, backends=[backend], assignments=allocator, mode=mode)
    proofs = {}
    with Timers(allocator) as timers:
        engine.run(
            4,
            lambda _: witness,
            lambda number, statement: proofs.__setitem__(number, bytes_of(statement.proof)),
            blinding=lambda number: (number, 2 * number),
        )
    for number in range(1, 5):
        expected = prove(key, witness, backend=get_backend("cpu"), r=number, s=2 * number)
        assert proofs[number] == bytes_of(expected)
    report = LayerReport.of(timers, backend.device_seconds())
    of_device = {row.path[-1]: row.device_s for row in report.rows if row.device_s}
    assert set(of_device) == {
        "witness", "ntt", "msm H", "msm A", "msm B1", "msm B2", "msm C",
        "sparse" if mode == "normal" else "transfer",
    }  # fmt: skip
    assert allocator.stats().live == engine.mask_bytes
