"""The readers against a second reading of the same bytes with struct."""

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prover.curves import CURVES
from prover.errors import MalformedFile, UnsupportedFile
from prover.formats import r1cs as r1cs_module
from prover.formats import scan
from prover.formats.r1cs import R1cs
from prover.formats.wtns import Witness
from prover.formats.zkey import COEFFICIENT, ProvingKey


def test_proving_key(circuit, sections):
    key = ProvingKey.open(circuit.key)
    raw = sections.read(circuit.key)
    n8q = struct.unpack_from("<I", raw[2])[0]
    numbers = 4 + n8q + 4 + 32
    assert (key.signals, key.public, key.domain) == struct.unpack_from("<3I", raw[2], numbers)
    assert key.curve is CURVES[circuit.curve]
    position = numbers + 12
    for name, coordinates in (
        ("alpha1", 2),
        ("beta1", 2),
        ("beta2", 4),
        ("gamma2", 4),
        ("delta1", 2),
        ("delta2", 4),
    ):
        size = coordinates * n8q
        assert getattr(key, name).tobytes() == raw[2][position : position + size], name
        position += size
    assert position == len(raw[2])
    for section, rows in (
        (3, key.ic),
        (5, key.a1),
        (6, key.b1),
        (7, key.b2),
        (8, key.c1),
        (9, key.h1),
    ):
        assert rows.tobytes() == raw[section]
        assert rows.shape[1] == (4 if section == 7 else 2) * n8q
    assert key.coefficients.tobytes() == raw[4][4:]
    assert key.contributions == struct.unpack_from("<I", raw[10], 64)[0]


def test_coefficient_records(circuit, sections):
    records = ProvingKey.open(circuit.key).coefficients.view(COEFFICIENT).reshape(-1)
    raw = sections.read(circuit.key)[4]
    assert len(records) == struct.unpack_from("<I", raw)[0]
    for number, record in enumerate(records):
        matrix, row, signal, value = struct.unpack_from("<III32s", raw, 4 + 44 * number)
        assert (record["matrix"], record["constraint"], record["signal"]) == (matrix, row, signal)
        assert record["value"].tobytes() == value


def test_constraints_counted_by_the_check(circuit):
    key = ProvingKey.open(circuit.key)
    key.check()
    assert key.constraints == R1cs.open(circuit.r1cs).constraints


def test_every_point_of_the_fixtures_is_in_its_subgroup(circuit):
    ProvingKey.open(circuit.key).check(subgroups=True)


def test_witness(circuit, sections):
    witness = Witness.open(circuit.witness)
    raw = sections.read(circuit.witness)
    assert witness.values.tobytes() == raw[2]
    assert witness.values.shape == (struct.unpack_from("<I", raw[1], 36)[0], 32)
    assert witness.curve is CURVES[circuit.curve]


@pytest.mark.parametrize("piece", [32, 100, 1 << 20])
def test_a_witness_is_copied_piece_by_piece(circuit, monkeypatch, piece):
    monkeypatch.setattr(scan, "PIECE_BYTES", piece)
    witness = Witness.open(circuit.witness)
    out = np.zeros_like(witness.values)
    witness.read(out, threads=2)
    assert np.array_equal(out, witness.values)


def test_sections_in_any_order(circuit, sections, tmp_path):
    for source, reader in (
        (circuit.key, ProvingKey),
        (circuit.witness, Witness),
        (circuit.r1cs, R1cs),
    ):
        raw = sections.read(source)
        random.Random(1).shuffle(raw.parts)
        shuffled = tmp_path / source.name
        shuffled.write_bytes(raw.encode())
        plain, other = reader.open(source), reader.open(shuffled)
        for name, value in vars(plain).items():
            if isinstance(value, np.ndarray):
                assert np.array_equal(value, getattr(other, name)), name


def test_unknown_sections_are_passed_over(circuit, sections, tmp_path):
    raw = sections.read(circuit.key)
    raw.parts.insert(1, (77, bytearray(b"odd size, so that nothing after it is aligned")))
    path = tmp_path / "circuit.zkey"
    path.write_bytes(raw.encode())
    key = ProvingKey.open(path)
    key.check()
    assert key.a1.tobytes() == raw[5]


def test_dropping_pages_changes_nothing(circuit):
    key = ProvingKey.open(circuit.key)
    before = key.b2.tobytes()
    key.drop(key.b2)
    assert key.b2.tobytes() == before


def naive_terms(raw):
    """Every term of an r1cs as (matrix, constraint, wire, value)."""
    count = struct.unpack_from("<I", raw[1], 60)[0]
    data, position, terms = raw[2], 0, []
    for constraint in range(count):
        for matrix in range(3):
            (length,) = struct.unpack_from("<I", data, position)
            position += 4
            for _ in range(length):
                wire, value = struct.unpack_from("<I32s", data, position)
                terms.append((matrix, constraint, wire, int.from_bytes(value, "little")))
                position += 36
    assert position == len(data)
    return terms


def read_terms(circuit):
    return [
        (int(m), int(c), int(w), int.from_bytes(v.tobytes(), "little"))
        for block in circuit.blocks()
        for m, c, w, v in zip(block.matrix, block.constraint, block.wire, block.value, strict=True)
    ]


def test_constraints(circuit, sections):
    read = R1cs.open(circuit.r1cs)
    raw = sections.read(circuit.r1cs)
    header = struct.unpack_from("<4IQI", raw[1], 36)
    assert header == (
        read.wires,
        read.outputs,
        read.public_inputs,
        read.private_inputs,
        read.labels,
        read.constraints,
    )
    assert read_terms(read) == naive_terms(raw)
    assert read.terms == len(naive_terms(raw))


lengths = st.lists(st.tuples(*[st.integers(0, 5)] * 3), max_size=12)


@settings(max_examples=60)
@given(lengths=lengths, piece=st.sampled_from([1, 40, 200, 1000]), odd=st.booleans())
def test_constraints_of_any_shape_in_blocks_of_any_size(
    lengths, piece, odd, sections, tmp_path_factory
):
    order = CURVES["bn128"].r
    rng = random.Random(len(lengths))
    data = b"".join(
        struct.pack("<I", n)
        + b"".join(
            struct.pack("<I", rng.randrange(9)) + rng.randrange(order).to_bytes(32, "little")
            for _ in range(n)
        )
        for constraint in lengths
        for n in constraint
    )
    header = struct.pack("<I", 32) + order.to_bytes(32, "little")
    header += struct.pack("<4IQI", 9, 1, 1, 1, 9, len(lengths))
    raw = sections(b"r1cs", 1, [(2, bytearray(data)), (1, bytearray(header)), (3, bytearray(72))])
    if odd:
        raw.parts.insert(0, (9, bytearray(b"odd")))
    path = tmp_path_factory.mktemp("r1cs") / "any.r1cs"
    path.write_bytes(raw.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(r1cs_module, "_BLOCK_BYTES", piece)
        assert read_terms(R1cs.open(path)) == naive_terms(raw)


def test_values_are_checked_in_every_piece(circuit, sections, tmp_path, monkeypatch):
    # One row a piece: the number in the message must be the row's, not the piece's.
    monkeypatch.setattr(scan, "PIECE_BYTES", 1)
    raw = sections.read(circuit.key)
    size = len(raw[5]) // ProvingKey.open(circuit.key).signals
    raw[5][2 * size : 3 * size] = b"\1" * size
    path = tmp_path / "circuit.zkey"
    path.write_bytes(raw.encode())
    with pytest.raises(MalformedFile, match="A point 2 is not a point of"):
        ProvingKey.open(path).check()


def circuit_header(raw):
    return dict(
        zip(("wires", "outputs", "inputs", "private", "labels", "constraints"),
            struct.unpack_from("<4IQI", raw[1], 36), strict=True)
    )  # fmt: skip


def set_circuit_header(raw, **changes):
    struct.pack_into("<4IQI", raw[1], 36, *(circuit_header(raw) | changes).values())


def too_few_wires(raw):
    set_circuit_header(raw, wires=1)
    raw[3] = bytes(8)


def wire_out_of_range(raw):
    wires = circuit_header(raw)["wires"]
    struct.pack_into("<I", raw[2], 4, wires)


def coefficient_too_large(raw):
    raw[2][8:40] = raw[1][4:36]


def count_too_large(raw):
    set_circuit_header(raw, constraints=2**32 - 1)


def count_too_small(raw):
    set_circuit_header(raw, constraints=circuit_header(raw)["constraints"] - 1)


def length_too_large(raw):
    struct.pack_into("<I", raw[2], 0, 2**32 - 1)


def length_too_small(raw):
    struct.pack_into("<I", raw[2], len(raw[2]) - 40, 0)  # the last combination has one term


def other_field(raw):
    raw[1][4] ^= 2


def other_field_size(raw):
    struct.pack_into("<I", raw[1], 0, 48)


def labels_missing(raw):
    raw[3] = raw[3][:-8]


def custom_gates(raw):
    raw.parts.append((4, bytearray(4)))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (too_few_wires, MalformedFile, "claims 1 wires"),
        (wire_out_of_range, MalformedFile, "constraint 0 names wire"),
        (coefficient_too_large, MalformedFile, "coefficient of term 0 is not below"),
        (count_too_large, MalformedFile, "cannot hold the 4294967295 constraints"),
        (count_too_small, MalformedFile, "do not add up"),
        (length_too_large, MalformedFile, "do not add up"),
        (length_too_small, MalformedFile, "do not add up"),
        (other_field, UnsupportedFile, "neither BN254's"),
        (other_field_size, UnsupportedFile, "field of 48 bytes"),
        (labels_missing, MalformedFile, "labels of"),
        (custom_gates, UnsupportedFile, "PLONK"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_malformed_constraints_are_refused(multiplier, sections, tmp_path, change, error, message):
    raw = sections.read(multiplier.r1cs)
    change(raw)
    path = tmp_path / "circuit.r1cs"
    path.write_bytes(raw.encode())
    with pytest.raises(error, match=message):
        list(R1cs.open(path).blocks())
