"""Pairings against py_ecc, and the laws that any pairing obeys."""

import secrets
from typing import Any

import numpy as np
import pytest
from py_ecc import optimized_bls12_381, optimized_bn128

from prover.backends.cpu import _cpu
from prover.curves import CURVES
from prover.formats.proof_json import decode_coordinates

BN_U = 4965661367192848881


def scalar(value: int) -> np.ndarray:
    return np.frombuffer(value.to_bytes(32, "little"), np.uint8).reshape(1, 32)


def multiple(curve: str, group: int, k: int) -> np.ndarray:
    """K times the generator; the scalar may exceed r."""
    base = _cpu.generator(curve, group).reshape(1, -1)
    return _cpu.scale(curve, group, base, scalar(k % CURVES[curve].r)).reshape(1, -1)


def is_one(curve: str, *pairs: tuple[int, int]) -> bool:
    """Whether the product of e(a G1, b G2) over the pairs (a, b) is one."""
    g1 = np.concatenate([multiple(curve, 1, a) for a, _ in pairs])
    g2 = np.concatenate([multiple(curve, 2, b) for _, b in pairs])
    return _cpu.pairing_product_is_one(curve, g1, g2)


def oracle_value(curve: str, a: int, b: int) -> list[int]:
    """E(a G1, b G2) by py_ecc, to the power that ours has, from its basis to the tower's."""
    oracle: Any = optimized_bn128 if curve == "bn128" else optimized_bls12_381
    value = oracle.pairing(oracle.multiply(oracle.G2, b), oracle.multiply(oracle.G1, a))
    r = CURVES[curve].r
    # The final exponentiations: ours computes a multiple of py_ecc's exponent (q^12 - 1) / r, and
    # py_ecc leaves out the sign of BLS12-381's x.
    power = 2 * BN_U * (6 * BN_U**2 + 3 * BN_U + 1) if curve == "bn128" else -3
    flat = [int(c) for c in (value ** (power % r)).coeffs]
    # py_ecc: one polynomial in w over Fp, and w^6 = xi = xi0 + u.
    xi0 = 9 if curve == "bn128" else 1
    q = CURVES[curve].q
    over_fp2 = [((flat[k] + xi0 * flat[k + 6]) % q, flat[k + 6]) for k in range(6)]
    return [x for half in (0, 1) for k in range(3) for x in over_fp2[half + 2 * k]]


def test_values_are_py_ecc_s(curve_name: str) -> None:
    a, b = 123456789, CURVES[curve_name].r - 987654321
    value = _cpu.pairing_product(curve_name, multiple(curve_name, 1, a), multiple(curve_name, 2, b))
    assert decode_coordinates(CURVES[curve_name], value) == oracle_value(curve_name, a, b)


def test_every_arithmetic_gives_the_same_value(curve_name: str) -> None:
    chosen = _cpu.arithmetic()
    pair = multiple(curve_name, 1, 3**99), multiple(curve_name, 2, 5**77)
    value = _cpu.pairing_product(curve_name, *pair)
    try:
        _cpu._use_arithmetic("portable")
        assert np.array_equal(_cpu.pairing_product(curve_name, *pair), value)
    finally:
        _cpu._use_arithmetic(chosen)


def test_bilinear(curve_name: str) -> None:
    r = CURVES[curve_name].r
    for _ in range(5):
        a, b, c = (secrets.randbelow(r - 1) + 1 for _ in range(3))
        assert is_one(curve_name, (a, b), (-a * b, 1))
        assert is_one(curve_name, (a, b), (c, b), (-(a + c), b))
        assert is_one(curve_name, (a, b), (a, c), (-a, b + c))
        assert not is_one(curve_name, (a, b), (1 - a * b, 1))


def test_not_degenerate(curve_name: str) -> None:
    assert not is_one(curve_name, (1, 1))


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (0, 0)])
def test_infinity_pairs_to_one(curve_name: str, pair: tuple[int, int]) -> None:
    assert is_one(curve_name, pair)
    assert not is_one(curve_name, pair, (1, 1))
    assert is_one(curve_name, (5, 7), pair, (-35, 1))


def test_the_empty_product_is_one(curve_name: str) -> None:
    size = CURVES[curve_name].coordinate_bytes
    none = np.empty((0, 2 * size), np.uint8), np.empty((0, 4 * size), np.uint8)
    assert _cpu.pairing_product_is_one(curve_name, *none)


def test_shapes_are_checked(curve_name: str) -> None:
    one, two = multiple(curve_name, 1, 1), multiple(curve_name, 2, 1)
    for g1, g2 in ((two, one), (np.concatenate([one, one]), two), (one[:, :-1].copy(), two)):
        with pytest.raises(ValueError):
            _cpu.pairing_product_is_one(curve_name, g1, g2)
    with pytest.raises(ValueError):
        _cpu.pairing_product_is_one("secp256k1", one, two)
