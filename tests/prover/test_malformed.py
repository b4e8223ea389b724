"""Keys and witnesses that other provers accept or crash on: one line, exit 2, no output."""

import struct

import numpy as np
import pytest

from prover.backends.cpu import _cpu
from prover.curves import CURVES
from prover.formats.zkey import ProvingKey

POINTS = {3: "IC point", 5: "A point", 6: "B1 point", 7: "B2 point", 8: "C point", 9: "H point"}


def coordinate_bytes(raw):
    return struct.unpack_from("<I", raw[2])[0]


def numbers_at(raw):
    """Offset of nVars, nPublic, domainSize in section 2."""
    return 4 + coordinate_bytes(raw) + 4 + 32


def put_number(raw, index, value):
    struct.pack_into("<I", raw[2], numbers_at(raw) + 4 * index, value)


def number(raw, index):
    return struct.unpack_from("<I", raw[2], numbers_at(raw) + 4 * index)[0]


def header_point_at(raw, name):
    n = coordinate_bytes(raw)
    offsets = {"alpha1": 0, "beta1": 2, "beta2": 4, "gamma2": 8, "delta1": 12, "delta2": 14}
    return numbers_at(raw) + 12 + offsets[name] * n


def plonk(raw):
    raw[1] = struct.pack("<I", 2)


def fflonk(raw):
    raw[1] = struct.pack("<I", 10)


def unknown_protocol(raw):
    raw[1] = struct.pack("<I", 7)


def other_base_prime(raw):
    raw[2][4] ^= 2


def other_scalar_prime(raw):
    raw[2][4 + coordinate_bytes(raw) + 4] ^= 2


def other_coordinate_size(raw):
    struct.pack_into("<I", raw[2], 0, 64)


def other_scalar_size(raw):
    struct.pack_into("<I", raw[2], 4 + coordinate_bytes(raw), 48)


def more_signals(raw):
    put_number(raw, 0, number(raw, 0) + 1)


def absurdly_many_signals(raw):
    put_number(raw, 0, 2**32 - 1)


def more_public(raw):
    put_number(raw, 1, number(raw, 1) + 1)


def all_public(raw):
    put_number(raw, 1, number(raw, 0))


def domain_not_a_power_of_two(raw):
    put_number(raw, 2, 3)


def domain_zero(raw):
    put_number(raw, 2, 0)


def domain_too_large(raw):
    put_number(raw, 2, 2**31)
    # BLS12-381 has the roots for this one, but then section 9 is far too short.


def domain_doubled(raw):
    put_number(raw, 2, 2 * number(raw, 2))
    raw[9] = raw[9] + raw[9]


def domain_halved(raw):
    put_number(raw, 2, number(raw, 2) // 2)
    raw[9] = raw[9][: len(raw[9]) // 2]


def coefficient_count(raw):
    struct.pack_into("<I", raw[4], 0, 2**32 - 1)


def no_coefficients(raw):
    raw[4] = bytes(4)


def matrix_index(raw):
    struct.pack_into("<I", raw[4], 4, 2)


def constraint_index(raw):
    struct.pack_into("<I", raw[4], 8, number(raw, 2))


def constraint_index_far_out(raw):
    struct.pack_into("<I", raw[4], 8, 2**32 - 1)


def signal_index(raw):
    struct.pack_into("<I", raw[4], 12, 10**6)


def last_signal_index(raw):
    struct.pack_into("<I", raw[4], len(raw[4]) - 36, number(raw, 0))


def coefficient_is_the_order(raw):
    at = 4 + coordinate_bytes(raw) + 4
    raw[4][16:48] = raw[2][at : at + 32]


def contributions_claimed(raw):
    struct.pack_into("<I", raw[10], 64, 2**32 - 1)


def contribution_parameters(raw):
    struct.pack_into("<I", raw[10], 68 + 10 * coordinate_bytes(raw) + 68, 2**31)


def contributions_cut(raw):
    raw[10] = raw[10][:-1]


def contributions_too_long(raw):
    raw[10] = raw[10] + b"\0"


CHANGES = [
    (plonk, "is a PLONK key"),
    (fflonk, "is a fflonk key"),
    (unknown_protocol, "protocol-7"),
    (other_base_prime, "not the primes of"),
    (other_scalar_prime, "not the primes of"),
    (other_coordinate_size, "coordinates of 64 bytes"),
    (other_scalar_size, "not the primes of"),
    (more_signals, "one point for each"),
    (absurdly_many_signals, "one point for each"),
    (more_public, "one point for each"),
    (all_public, "public signals of"),
    (domain_not_a_power_of_two, "no power of two"),
    (domain_zero, "no power of two"),
    (domain_too_large, "domain"),
    (domain_doubled, "domain"),
    (domain_halved, "constraint"),
    (coefficient_count, "4294967295 coefficients"),
    (no_coefficients, "has 0 coefficients"),
    (matrix_index, "names matrix 2"),
    (constraint_index, "names constraint"),
    (constraint_index_far_out, "names constraint 4294967295"),
    (signal_index, "names signal 1000000"),
    (last_signal_index, "names signal"),
    (coefficient_is_the_order, "coefficient 0 is not below"),
    (contributions_claimed, "contributions"),
    (contribution_parameters, "contributions"),
    (contributions_cut, "contributions"),
    (contributions_too_long, "contributions"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=lambda v: getattr(v, "__name__", ""))
def test_malformed_keys(multiplier, sections, tmp_path, folder, prove, refused, change, message):
    raw = sections.read(multiplier.key)
    change(raw)
    key = tmp_path / "changed.zkey"
    key.write_bytes(raw.encode())
    line = refused(prove(key, multiplier.witness), folder)
    assert str(key) in line
    assert message in line


@pytest.mark.parametrize("curve_name", ["bn128"])
def test_a_domain_whose_double_has_no_roots(multiplier, sections, tmp_path, folder, prove, refused):
    raw = sections.read(multiplier.key)
    # N = 2^28 has roots of unity, 2N has none; BLS12-381 has them for all that a key can say.
    put_number(raw, 2, 2**28)
    key = tmp_path / "changed.zkey"
    key.write_bytes(raw.encode())
    line = refused(prove(key, multiplier.witness), folder)
    assert "its domain of 268435456 exceeds 134217728" in line


def test_fewer_rows_than_public_signals(multiplier, sections, tmp_path, folder, prove, refused):
    other = multiplier.folder.parent / "manypub"
    raw = sections.read(other / "circuit.zkey")
    assert (number(raw, 1), number(raw, 2)) == (100, 256)
    for at in range(8, len(raw[4]), 44):
        (row,) = struct.unpack_from("<I", raw[4], at)
        # Row 128 still asks for the domain of 256, but there are 150 public signals now.
        struct.pack_into("<I", raw[4], at, min(row, 128))
    put_number(raw, 1, 150)
    size = len(raw[3]) // 101
    raw[3] = raw[3] + raw[3][:size] * 50
    raw[8] = raw[8][50 * size :]
    key = tmp_path / "changed.zkey"
    key.write_bytes(raw.encode())
    line = refused(prove(key, other / "witness.wtns"), folder)
    assert "its 129 constraint rows do not fit 150 public signals" in line


@pytest.mark.parametrize("section", POINTS)
def test_points_off_the_curve(multiplier, sections, tmp_path, folder, prove, refused, section):
    raw = sections.read(multiplier.key)
    raw[section][-1 - coordinate_bytes(raw) // 2] ^= 1  # inside the last point's last coordinate
    key = tmp_path / "changed.zkey"
    key.write_bytes(raw.encode())
    line = refused(prove(key, multiplier.witness), folder)
    assert POINTS[section] in line
    assert "is not a point of" in line


@pytest.mark.parametrize("section", POINTS)
def test_coordinates_not_below_the_prime(
    multiplier, sections, tmp_path, folder, prove, refused, section
):
    raw = sections.read(multiplier.key)
    n = coordinate_bytes(raw)
    q = int.from_bytes(raw[2][4 : 4 + n], "little")
    # Where x + q still fits its bytes, x + q stands for the same point and must be refused too.
    for at in range(0, len(raw[section]), n):
        x = int.from_bytes(raw[section][at : at + n], "little")
        if x + q < 1 << 8 * n:
            raw[section][at : at + n] = (x + q).to_bytes(n, "little")
            break
    else:
        pytest.fail("no coordinate leaves room for the prime")
    key = tmp_path / "changed.zkey"
    key.write_bytes(raw.encode())
    assert "is not a point of" in refused(prove(key, multiplier.witness), folder)


@pytest.mark.parametrize("name", ["alpha1", "beta1", "beta2", "gamma2", "delta1", "delta2"])
def test_header_points(multiplier, sections, tmp_path, folder, prove, refused, name):
    original = sections.read(multiplier.key)
    at = header_point_at(original, name)
    size = (4 if name.endswith("2") else 2) * coordinate_bytes(original)
    for content, message in [
        (bytes(size), f"{name} is infinity"),
        (b"\1" * size, f"{name} is not a point of"),
        (b"\xff" * size, f"{name} is not a point of"),
    ]:
        raw = sections.read(multiplier.key)
        raw[2][at : at + size] = content
        key = tmp_path / "changed.zkey"
        key.write_bytes(raw.encode())
        assert message in refused(prove(key, multiplier.witness), folder)


def outside_subgroup(curve_name, group):
    """A point on the curve that is not of order r, as a row of a key."""
    curve = CURVES[curve_name]
    q, n = curve.q, curve.coordinate_bytes
    if group == 1:
        b = 3 if curve_name == "bn128" else 4
        x, y = next(
            (x, pow(x**3 + b, (q + 1) // 4, q))
            for x in range(1, 1000)
            if pow(x**3 + b, (q - 1) // 2, q) == 1
        )
        coordinates = [x, y]
    else:
        coordinates = point_of_the_twist(curve_name, q)
    encoded = b"".join((c * (1 << 8 * n) % q).to_bytes(n, "little") for c in coordinates)
    row = np.frombuffer(encoded, np.uint8).reshape(1, -1)
    assert _cpu.find_off_curve(curve_name, group, row) == -1
    assert _cpu.find_outside_subgroup(curve_name, group, row) == 0
    return encoded


def point_of_the_twist(curve_name, q):
    """The first affine point with x = (i, 0) of y^2 = x^3 + b', with u^2 = -1."""
    if curve_name == "bn128":  # b' = 3 / (9 + u)
        inverse = pow(82, -1, q)
        b = (27 * inverse % q, -3 * inverse % q)
    else:  # b' = 4 (1 + u)
        b = (4, 4)
    for i in range(1, 1000):
        root = square_root((i**3 + b[0]) % q, b[1] % q, q)
        if root is not None:
            return [i, 0, *root]
    raise AssertionError("no point found")


def square_root(a0, a1, q):
    """A square root of a0 + a1 u with u^2 = -1, a1 not zero, or None (complex method)."""
    norm = (a0 * a0 + a1 * a1) % q
    length = pow(norm, (q + 1) // 4, q)
    if length * length % q != norm:
        return None
    for half in ((a0 + length) * pow(2, -1, q) % q, (a0 - length) * pow(2, -1, q) % q):
        x = pow(half, (q + 1) // 4, q)
        if x and x * x % q == half:
            return x, a1 * pow(2 * x, -1, q) % q
    return None


@pytest.mark.parametrize(
    ("curve_name", "name"),
    [
        # BN254's G1 has cofactor one: all its points are in the subgroup.
        *(("bn128", name) for name in ("beta2", "gamma2", "delta2")),
        *(("bls12381", name) for name in ("alpha1", "beta1", "delta1")),
        *(("bls12381", name) for name in ("beta2", "gamma2", "delta2")),
    ],
)
def test_header_points_outside_the_subgroup(
    multiplier, sections, tmp_path, folder, prove, refused, name
):
    group = int(name[-1])
    raw = sections.read(multiplier.key)
    point = outside_subgroup(multiplier.curve, group)
    at = header_point_at(raw, name)
    raw[2][at : at + len(point)] = point
    key = tmp_path / "changed.zkey"
    key.write_bytes(raw.encode())
    line = refused(prove(key, multiplier.witness), folder)
    assert f"{name} is outside the subgroup" in line


def test_public_signal_points(multiplier, sections, tmp_path, folder, prove, refused):
    raw = sections.read(multiplier.key)
    size = len(raw[3]) // 2
    cases = [(bytes(size), "IC point 1 is infinity")]
    if multiplier.curve == "bls12381":
        cases.append((outside_subgroup("bls12381", 1), "IC point 1 is outside the subgroup"))
    for point, message in cases:
        raw[3][size:] = point
        key = tmp_path / "changed.zkey"
        key.write_bytes(raw.encode())
        assert message in refused(prove(key, multiplier.witness), folder)


def test_other_points_outside_the_subgroup_do_not_reach_a_proof(
    multiplier, sections, tmp_path, folder, cli, prove, refused
):
    raw = sections.read(multiplier.key)
    point = outside_subgroup(multiplier.curve, 2)
    raw[7][: len(point)] = point  # signal 0, which is one in every witness
    key = tmp_path / "changed.zkey"
    key.write_bytes(raw.encode())
    assert "prover info --check" in refused(prove(key, multiplier.witness), folder)
    line = refused(cli("info", "--check", key))
    assert "B2 point 0 is outside the subgroup" in line
    assert cli("info", key).code == 0


# Witnesses


def write_value(raw, signal, value):
    raw[2][32 * signal : 32 * signal + 32] = value.to_bytes(32, "little")


def value_of(raw, signal):
    return int.from_bytes(raw[2][32 * signal : 32 * signal + 32], "little")


def value_is_the_order(raw, order):
    write_value(raw, 2, order)


def value_plus_the_order(raw, order):
    write_value(raw, 2, value_of(raw, 2) + order)


def value_is_huge(raw, order):
    write_value(raw, 3, 2**256 - 1)


def constant_is_zero(raw, order):
    write_value(raw, 0, 0)


def constant_is_two(raw, order):
    write_value(raw, 0, 2)


def more_values_claimed(raw, order):
    struct.pack_into("<I", raw[1], 36, 2**32 - 1)


def fewer_values_claimed(raw, order):
    struct.pack_into("<I", raw[1], 36, 3)


def no_values(raw, order):
    struct.pack_into("<I", raw[1], 36, 0)
    raw[2] = b""


def one_value_fewer(raw, order):
    fewer_values_claimed(raw, order)
    raw[2] = raw[2][:-32]


def other_field(raw, order):
    raw[1][4] ^= 2


def other_value_size(raw, order):
    struct.pack_into("<I", raw[1], 0, 48)


def tampered(raw, order):
    write_value(raw, 3, (value_of(raw, 3) + 1) % order)


def tampered_public(raw, order):
    write_value(raw, 1, (value_of(raw, 1) + 1) % order)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (value_is_the_order, "signal 2 is not below"),
        (value_plus_the_order, "signal 2 is not below"),
        (value_is_huge, "signal 3 is not below"),
        (constant_is_zero, "signal 0 is not one"),
        (constant_is_two, "signal 0 is not one"),
        (more_values_claimed, "the 4294967295 signals it claims"),
        (fewer_values_claimed, "the 3 signals it claims"),
        (no_values, "signal 0 is not one"),
        (one_value_fewer, "holds 3 signals, but the circuit"),
        (other_field, "neither BN254's"),
        (other_value_size, "values of 48 bytes"),
        (tampered, "does not satisfy the circuit"),
        (tampered_public, "does not satisfy the circuit"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_malformed_witnesses(
    multiplier, sections, tmp_path, folder, prove, refused, change, message
):
    raw = sections.read(multiplier.witness)
    change(raw, CURVES[multiplier.curve].r)
    witness = tmp_path / "changed.wtns"
    witness.write_bytes(raw.encode())
    line = refused(prove(multiplier.key, witness), folder)
    assert str(witness) in line
    assert message in line


def test_witness_of_another_circuit(multiplier, folder, prove, refused):
    other = multiplier.folder.parent / "manypub" / "witness.wtns"
    line = refused(prove(multiplier.key, other), folder)
    assert "holds 201 signals, but the circuit" in line


def test_witness_of_another_circuit_of_the_same_size(multiplier, folder, prove, refused):
    other = multiplier.folder.parent / "zeropub" / "witness.wtns"
    assert "does not satisfy" in refused(prove(multiplier.key, other), folder)


def test_witness_of_another_curve(multiplier, folder, prove, refused):
    (other,) = {"bn128", "bls12381"} - {multiplier.curve}
    witness = multiplier.folder.parents[1] / other / "multiplier" / "witness.wtns"
    line = refused(prove(multiplier.key, witness), folder)
    assert f"is over {other}, but" in line


def test_files_in_the_wrong_places(multiplier, folder, prove, refused):
    assert "a zkey file is needed" in refused(prove(multiplier.witness, multiplier.key), folder)
    assert "a wtns file is needed" in refused(prove(multiplier.key, multiplier.r1cs), folder)


def test_info_refuses_what_the_readers_refuse(multiplier, sections, tmp_path, cli, refused):
    for source in (multiplier.key, multiplier.witness, multiplier.r1cs):
        cut = tmp_path / source.name
        cut.write_bytes(source.read_bytes()[:-1])
        assert "is truncated" in refused(cli("info", cut))
    assert "is a directory" in refused(cli("info", tmp_path))
    assert "no such file" in refused(cli("info", tmp_path / "missing"))


def test_a_key_is_opened_without_looking_at_its_values(multiplier, sections, tmp_path):
    raw = sections.read(multiplier.key)
    signal_index(raw)
    key = tmp_path / "changed.zkey"
    key.write_bytes(raw.encode())
    ProvingKey.open(key)  # what `prover info` shows, at once, whatever the size
