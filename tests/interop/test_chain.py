"""The circuit that provers are measured on: well formed, satisfied, and of the size it claims."""

from pathlib import Path

from bench.chain import write_chain
from prover.curves import CURVES
from prover.formats.r1cs import R1cs
from prover.formats.wtns import Witness
from prover.setup import domain_size


def test_snarkjs_finds_the_chain_satisfied(curve_name: str, snarkjs, tmp_path: Path) -> None:
    circuit, witness = write_chain(tmp_path, 6, CURVES[curve_name])
    result = snarkjs("wtns", "check", circuit, witness)
    assert "WITNESS CHECKING FINISHED SUCCESSFULLY" in result.stdout
    spoilt = bytearray(witness.read_bytes())
    spoilt[-32] ^= 1
    witness.write_bytes(spoilt)
    assert (
        "WITNESS CHECKING FINISHED SUCCESSFULLY"
        not in snarkjs("wtns", "check", circuit, witness).stdout
    )


def test_the_chain_fills_its_domain_with_full_size_values(curve_name: str, tmp_path: Path) -> None:
    circuit, witness = write_chain(tmp_path, 8, CURVES[curve_name])
    assert domain_size(R1cs.open(circuit)) == 1 << 8
    values = Witness.open(witness).values[1:]
    small = sum(not row[16:].any() for row in values)
    assert len(values) == (1 << 8) - 15
    assert small == 0
