"""What the verifier refuses to look at: peers accept much of it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prover.curves import CURVES, Curve
from prover.errors import MalformedFile, MismatchedFiles, ProverError
from prover.formats.proof_json import encode_point, nests_deeply, read_proof
from prover.groth16 import Proof
from prover.verify import Unverifiable, VerificationKey, verify

Change = Callable[[Any, Curve], Any]
G1_PLACES = [("proof", "pi_a"), ("proof", "pi_c"), ("verification_key", "vk_alpha_1")]
G2_PLACES = [
    ("proof", "pi_b"),
    ("verification_key", "vk_beta_2"),
    ("verification_key", "vk_gamma_2"),
    ("verification_key", "vk_delta_2"),
]

BAD_NUMBERS: dict[str, Change] = {
    "unreduced": lambda x, c: str(int(x) + c.q),
    "negative": lambda x, c: str(int(x) - c.q),
    "hexadecimal": lambda x, c: hex(int(x)),
    "leading zero": lambda x, c: "0" + x,
    "plus sign": lambda x, c: "+" + x,
    "blank": lambda x, c: x + " ",
    "line end": lambda x, c: x + "\n",
    "underscore": lambda x, c: x[:1] + "_" + x[1:],
    "other digits": lambda x, c: "\u0661",
    "number": lambda x, c: int(x),
    "empty": lambda x, c: "",
    "null": lambda x, c: None,
    "list": lambda x, c: [x],
    "very long": lambda x, c: "9" * 1_000_000,
}


@pytest.mark.parametrize("change", BAD_NUMBERS.values(), ids=BAD_NUMBERS.keys())
def test_numbers_are_canonical(small, change: Change) -> None:
    curve = small.curve
    for file, name in G1_PLACES:
        kept = small.content[file][name][0]
        small.content[file][name][0] = change(kept, curve)
        with pytest.raises(ProverError):
            small.verdict()
        small.content[file][name][0] = kept
    for file, name in G2_PLACES:
        kept = small.content[file][name][1][0]
        small.content[file][name][1][0] = change(kept, curve)
        with pytest.raises(ProverError):
            small.verdict()
        small.content[file][name][1][0] = kept
    assert small.verdict() is True


@pytest.mark.parametrize("change", BAD_NUMBERS.values(), ids=BAD_NUMBERS.keys())
def test_public_signals_are_canonical(small, change: Change) -> None:
    curve = small.curve
    order = Curve(curve.name, curve.title, curve.r, curve.r, curve.coordinate_bytes)
    small.content["public"][0] = change(small.content["public"][0], order)
    with pytest.raises(ProverError):
        small.verdict()


def test_the_prime_itself_is_no_number_of_its_field(small) -> None:
    small.content["proof"]["pi_a"][0] = str(small.curve.q)
    with pytest.raises(MalformedFile, match=r"pi_a\[0\] is not below the prime"):
        small.verdict()
    small.content["public"][0] = str(small.curve.r)
    with pytest.raises(MalformedFile, match="public signal 0 is not below the prime"):
        small.verdict()


BAD_G1: dict[str, Change] = {
    "off the curve": lambda p, c: [p[0], str((int(p[1]) + 1) % c.q), p[2]],
    "zero": lambda p, c: ["0", "0", "1"],
    "projective": lambda p, c: [str(int(p[0]) * 4 % c.q), str(int(p[1]) * 8 % c.q), "2"],
    "other infinity": lambda p, c: ["1", "1", "0"],
    "third coordinate two": lambda p, c: [p[0], p[1], "2"],
    "third coordinate zero": lambda p, c: [p[0], p[1], "0"],
    "short": lambda p, c: p[:2],
    "long": lambda p, c: [*p, "1"],
    "nested": lambda p, c: [[p[0], "0"], [p[1], "0"], ["1", "0"]],
    "object": lambda p, c: {"x": p[0], "y": p[1]},
    "string": lambda p, c: p[0],
}
BAD_G2: dict[str, Change] = {
    "off the curve": lambda p, c: [p[0], [p[1][0], str((int(p[1][1]) + 1) % c.q)], p[2]],
    "zero": lambda p, c: [["0", "0"], ["0", "0"], ["1", "0"]],
    "swapped coefficients": lambda p, c: [p[0][::-1], p[1][::-1], p[2]],
    "projective": lambda p, c: [
        [str(int(x) * 4 % c.q) for x in p[0]],
        [str(int(y) * 8 % c.q) for y in p[1]],
        ["2", "0"],
    ],
    "other infinity": lambda p, c: [["0", "0"], ["2", "0"], ["0", "0"]],
    "third coordinate 1 + u": lambda p, c: [p[0], p[1], ["1", "1"]],
    "third coordinate u": lambda p, c: [p[0], p[1], ["0", "1"]],
    "short": lambda p, c: p[:2],
    "flat": lambda p, c: [p[0][0], p[1][0], "1"],
    "short coordinate": lambda p, c: [p[0][:1], p[1], p[2]],
    "long coordinate": lambda p, c: [[*p[0], "0"], p[1], p[2]],
}


@pytest.mark.parametrize("change", BAD_G1.values(), ids=BAD_G1.keys())
def test_points_of_g1_are_points(small, change: Change) -> None:
    places = [*G1_PLACES, ("verification_key", "IC")]
    for file, name in places:
        holder: Any = small.content[file][name] if name == "IC" else small.content[file]
        index: Any = 1 if name == "IC" else name
        kept = holder[index]
        holder[index] = change(kept, small.curve)
        with pytest.raises(ProverError):
            small.verdict()
        holder[index] = kept


@pytest.mark.parametrize("change", BAD_G2.values(), ids=BAD_G2.keys())
def test_points_of_g2_are_points(small, change: Change) -> None:
    for file, name in G2_PLACES:
        kept = small.content[file][name]
        small.content[file][name] = change(kept, small.curve)
        with pytest.raises(ProverError):
            small.verdict()
        small.content[file][name] = kept


STRUCTURES: dict[str, Callable[[dict[str, Any]], object]] = {
    "other protocol": lambda f: f["proof"].update(protocol="plonk"),
    "no protocol": lambda f: f["proof"].pop("protocol"),
    "other curve": lambda f: f["proof"].update(curve="bls12377"),
    "curve null": lambda f: f["proof"].update(curve=None),
    "no pi_b": lambda f: f["proof"].pop("pi_b"),
    "proof a list": lambda f: f.update(proof=[f["proof"]]),
    "proof null": lambda f: f.update(proof=None),
    "key's other protocol": lambda f: f["verification_key"].update(protocol="fflonk"),
    "key's unknown curve": lambda f: f["verification_key"].update(curve="bn254"),
    "key's curve a list": lambda f: f["verification_key"].update(curve=["bn128"]),
    "key without curve": lambda f: f["verification_key"].pop("curve"),
    "key without delta": lambda f: f["verification_key"].pop("vk_delta_2"),
    "nPublic too small": lambda f: f["verification_key"].update(nPublic=0),
    "nPublic too large": lambda f: f["verification_key"].update(nPublic=2),
    "nPublic -1": lambda f: f["verification_key"].update(nPublic=-1, IC=[]),
    "nPublic true": lambda f: f["verification_key"].update(nPublic=True),
    "nPublic text": lambda f: f["verification_key"].update(nPublic="1"),
    "IC too short": lambda f: f["verification_key"]["IC"].pop(),
    "IC too long": lambda f: f["verification_key"]["IC"].append(f["verification_key"]["IC"][0]),
    "IC empty": lambda f: f["verification_key"].update(IC=[]),
    "IC infinite": lambda f: f["verification_key"]["IC"].__setitem__(0, ["0", "1", "0"]),
    "alpha infinite": lambda f: f["verification_key"].update(vk_alpha_1=["0", "1", "0"]),
    "delta infinite": lambda f: f["verification_key"].update(
        vk_delta_2=[["0", "0"], ["1", "0"], ["0", "0"]]
    ),
    "a signal too few": lambda f: f["public"].pop(),
    "a signal too many": lambda f: f["public"].append("0"),
    "public an object": lambda f: f.update(public={"0": "33"}),
    "public nested": lambda f: f.update(public=[f["public"]]),
}


@pytest.mark.parametrize("change", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_structures_are_exact(small, change: Callable[[dict[str, Any]], object]) -> None:
    change(small.content)
    with pytest.raises(ProverError):
        small.verdict()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"\xef\xbb\xbf[]",
        b'["33"] ["33"]',
        b"NaN",
        b'{"protocol": "plonk", "protocol": "groth16"}',
    ],
    ids=["empty", "cut", "utf-16", "mark", "two values", "no number", "field twice"],
)
def test_files_that_are_no_json(small, content: bytes) -> None:
    paths = small.paths()
    key = VerificationKey.from_json(paths[0])
    for path in paths:
        path.write_bytes(content)
    with pytest.raises(ProverError):
        VerificationKey.from_json(paths[0])
    with pytest.raises(ProverError):
        read_proof(paths[2], key.curve)


def loaded(small) -> tuple[VerificationKey, Proof]:
    paths = small.paths()
    key = VerificationKey.from_json(paths[0])
    return key, read_proof(paths[2], key.curve)


@pytest.mark.parametrize(
    "level",
    [b"[", b'{"a":', b'["]]", ', b'["\\"]\\\\", '],
    ids=["lists", "objects", "strings with brackets", "strings with quotes"],
)
def test_deep_nesting_is_refused_and_crashes_nothing(small, level: bytes) -> None:
    # In a process of its own, since it might crash. Libraries lift Python's limit; py_ecc does.
    paths = small.paths()
    paths[2].write_bytes(level * 200_000)
    code = "import sys; sys.setrecursionlimit(10**6)\n"
    code += "from prover.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "verify", *map(str, paths)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2, result
    assert result.stderr.endswith("is nested too deeply\n")


@pytest.mark.parametrize("unit", [b'\\"', b"\\", b'"\\', b"x"])
def test_a_string_without_an_end_is_read_once(unit: bytes) -> None:
    # Begun again at each quote, it would take hours.
    assert not nests_deeply(b'"' + unit * 500_001)
    assert not nests_deeply(b"[" * 100 + b'"' + unit * 500_001 + b"[")


def test_brackets_in_strings_nest_nothing(small) -> None:
    small.content["proof"]["note"] = '"[' * 1000 + "\\"
    assert small.verdict() is True


@pytest.mark.parametrize(
    "value", ["x" * 1_000_000, [["x" * 999] * 999] * 99, 10**4000], ids=["text", "lists", "number"]
)
def test_complaints_are_short_whatever_the_file_holds(small, value: Any) -> None:
    for file, name in [
        ("proof", "protocol"),
        ("proof", "curve"),
        ("proof", "pi_a"),
        ("verification_key", "protocol"),
        ("verification_key", "curve"),
        ("verification_key", "nPublic"),
        ("verification_key", "IC"),
    ]:
        kept = small.content[file][name]
        small.content[file][name] = value
        with pytest.raises(ProverError) as raised:
            small.verdict()
        assert len(str(raised.value).replace(str(small.target), "")) < 200
        small.content[file][name] = kept


def test_what_never_ends_is_refused(small, tmp_path: Path) -> None:
    curve = small.curve
    silent = tmp_path / "silent"
    os.mkfifo(silent)
    for path, message in (("/dev/zero", "holds more than 64 MiB"), (silent, "is no JSON file")):
        with pytest.raises(MalformedFile, match=message):
            read_proof(path, curve)


def test_a_pipe_is_read(small) -> None:
    paths = small.paths()
    words = [sys.executable, "-m", "prover", "verify", *map(str, paths[:2]), "/dev/stdin"]
    done = subprocess.run(words, input=paths[2].read_bytes(), stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"valid\n")


def test_a_proof_over_the_other_curve(small) -> None:
    key, proof = loaded(small)
    other = next(curve for curve in CURVES.values() if curve != key.curve)
    with pytest.raises(MismatchedFiles):
        verify(key, [33], Proof(other, proof.a, proof.b, proof.c))


def test_signals_in_memory_are_checked_too(small) -> None:
    key, proof = loaded(small)
    assert verify(key, [33], proof)
    for signal in (33 + key.curve.r, 33 - key.curve.r, key.curve.r, -1):
        with pytest.raises(Unverifiable):
            verify(key, [signal], proof)
    for signals in ([], [33, 0]):
        with pytest.raises(MismatchedFiles):
            verify(key, signals, proof)


# Points on the curve but outside the subgroup of order r, found without the code under test.

Complex = tuple[int, int]


def _square_root(a: int, q: int) -> int | None:
    root = pow(a, (q + 1) // 4, q)  # q = 3 mod 4 on both curves
    return root if root * root % q == a % q else None


def _complex_square_root(a: Complex, q: int) -> Complex | None:
    norm = _square_root(a[0] * a[0] + a[1] * a[1], q)
    if norm is None:
        return None
    for sign in (1, -1):
        c0 = _square_root((a[0] + sign * norm) * pow(2, -1, q) % q, q)
        if c0:
            return c0, a[1] * pow(2 * c0, -1, q) % q
    return None


def _times(a: Complex, b: Complex, q: int) -> Complex:
    return (a[0] * b[0] - a[1] * b[1]) % q, (a[0] * b[1] + a[1] * b[0]) % q


def g2_of_the_wrong_order(curve: Curve) -> list[int]:
    """The twist's points of small x: its cofactor is so large that none is in the subgroup."""
    q = curve.q
    if curve.name == "bn128":
        b = _times((3, 0), _times((9, -1), (pow(82, -1, q), 0), q), q)  # 3 / (9 + u)
    else:
        b = (4, 4)
    for k in range(1, 1000):
        x = (k, 1)
        cube = _times(x, _times(x, x, q), q)
        y = _complex_square_root(((cube[0] + b[0]) % q, (cube[1] + b[1]) % q), q)
        if y is not None:
            return [*x, *y]
    raise AssertionError("no point found")


def g1_of_the_wrong_order(curve: Curve) -> list[int]:
    """Like those of the twist; only BLS12-381 has them, BN254's G1 is the whole curve."""
    for x in range(1, 1000):
        y = _square_root((x**3 + 4) % curve.q, curve.q)
        if y is not None:
            return [x, y]
    raise AssertionError("no point found")


def test_points_of_g2_are_in_the_subgroup(small) -> None:
    x0, x1, y0, y1 = map(str, g2_of_the_wrong_order(small.curve))
    point = [[x0, x1], [y0, y1], ["1", "0"]]
    for file, name in G2_PLACES:
        kept = small.content[file][name]
        small.content[file][name] = point
        with pytest.raises(ProverError, match="subgroup"):
            small.verdict()
        small.content[file][name] = kept


@pytest.mark.parametrize("curve_name", ["bls12381"])
def test_points_of_g1_are_in_the_subgroup(small) -> None:
    x, y = map(str, g1_of_the_wrong_order(small.curve))
    for file, name in [*G1_PLACES, ("verification_key", "IC")]:
        holder: Any = small.content[file][name] if name == "IC" else small.content[file]
        index: Any = 1 if name == "IC" else name
        kept = holder[index]
        holder[index] = [x, y, "1"]
        with pytest.raises(ProverError, match="subgroup"):
            small.verdict()
        holder[index] = kept


def test_points_in_memory_are_checked_too(small) -> None:
    key, proof = loaded(small)
    bad = encode_point(key.curve, g2_of_the_wrong_order(key.curve))
    with pytest.raises(Unverifiable, match="subgroup"):
        verify(key, [33], Proof(key.curve, proof.a, bad, proof.c))
    off = encode_point(key.curve, [1, 1])
    for a, c in ((off, proof.c), (proof.a, off)):
        with pytest.raises(Unverifiable, match="not a point"):
            verify(key, [33], Proof(key.curve, a, proof.b, c))
