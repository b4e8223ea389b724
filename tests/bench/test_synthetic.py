"""The made-up circuits: their size, their witnesses, and every constraint against a plain model."""

from pathlib import Path

import numpy as np
import pytest

from bench.synthetic import BITS, PRODUCTS, Synthetic
from prover.curves import CURVES
from prover.formats.r1cs import R1cs
from prover.formats.wtns import Witness
from prover.setup import domain_size


def values_of(path: Path) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in Witness.open(path).values]


@pytest.mark.parametrize("k", [5, 7, 12])
def test_every_constraint_holds(curve_name: str, k: int, tmp_path: Path) -> None:
    curve = CURVES[curve_name]
    synthetic = Synthetic(k, curve)
    circuit = R1cs.open(synthetic.write_circuit(tmp_path))
    w = values_of(synthetic.write_witness(tmp_path, 0))
    assert domain_size(circuit) == 1 << k
    assert circuit.wires == synthetic.wires == len(w)
    sums = [[0, 0, 0] for _ in range(circuit.constraints)]
    terms = [0, 0, 0]
    used = set()
    for block in circuit.blocks():
        for matrix, row, wire, value in zip(
            block.matrix, block.constraint, block.wire, block.value, strict=True
        ):
            sums[row][matrix] += int.from_bytes(value.tobytes(), "little") * w[wire]
            terms[matrix] += 1
            used.add(int(wire))
    assert all((a * b - c) % curve.r == 0 for a, b, c in sums)
    assert used == set(range(circuit.wires))
    groups = circuit.constraints // (BITS + PRODUCTS)
    assert terms == [16 * groups, (2 * BITS + PRODUCTS) * groups, PRODUCTS * groups]
    nontrivial = sum(c % curve.r > 1 for _, _, c in sums)
    assert nontrivial == PRODUCTS * groups  # no product has collapsed


def test_a_witness_is_mostly_bits(curve_name: str, tmp_path: Path) -> None:
    synthetic = Synthetic(14, CURVES[curve_name])
    values = Witness.open(synthetic.write_witness(tmp_path, 0)).values
    small = ~values[:, 1:].any(axis=1)
    shares = [float((small & (values[:, 0] == bit)).mean()) for bit in (0, 1)]
    assert shares == pytest.approx([0.343, 0.343], abs=0.02)
    full = values[~small]
    assert full[:, 16:].any(axis=1).all()
    assert len(np.unique(full, axis=0)) == len(full)  # no value twice
    assert len(full) / len(values) == pytest.approx(0.313, abs=0.001)


def test_a_number_names_one_witness(tmp_path: Path) -> None:
    synthetic = Synthetic(8, CURVES["bn128"])
    first, second = (synthetic.write_witness(tmp_path, n) for n in (0, 1))
    a, b = values_of(first), values_of(second)
    assert a[1] != b[1]  # the output, which is public
    assert sum(x != y for x, y in zip(a, b, strict=True)) > len(a) / 2
    assert values_of(synthetic.write_witness(tmp_path, 0)) == a
