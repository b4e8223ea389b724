"""Field laws on the GPU against Python integers and the CPU backend."""

import operator

import cupy
import numpy as np
import pytest

from prover.backends.cpu import _cpu

BINARY = {"Add": operator.add, "Subtract": operator.sub, "Multiply": operator.mul}
UNARY = ("Negate", "Square", "Invert")
CONVERSIONS = ("ToMontgomery", "FromMontgomery")
ON_CPU = {
    "Add": "add",
    "Subtract": "sub",
    "Multiply": "mul",
    "Negate": "neg",
    "Square": "sqr",
    "Invert": "inverse",
}
TYPES = {"scalar": "Curve::Fr", "base": "Curve::Fq", "extension": "Curve::Fq2"}
FIELDS = ("scalar", "base")
NAMES = (
    *(f"elements<{TYPES[f]}, {op}>" for f in TYPES for op in (*BINARY, *UNARY)),
    *(f"elements<{TYPES[f]}, {op}>" for f in FIELDS for op in CONVERSIONS),
    *(f"invert_all<{TYPES[f]}>" for f in FIELDS),
)


def edge_values(modulus, radix, rng):
    """Values whose Montgomery forms, or who themselves, have extreme limbs."""
    held = {0, 1, 2, modulus - 1, modulus - 2, modulus // 2, modulus // 2 + 1, radix % modulus}
    for bits in (31, 32, 33, 63, 64, 65, 127, 128, 160, 192, 224, modulus.bit_length() - 1):
        held |= {(1 << bits) - 1, 1 << bits, (1 << bits) + 1, modulus - (1 << bits)}
    for _ in range(40):
        limbs = [rng.choice([0, 1, 2**31, 2**32 - 2, 2**32 - 1]) for _ in range(12)]
        held.add(sum(limb << (32 * i) for i, limb in enumerate(limbs)) % modulus)
    inverse = pow(radix, -1, modulus)
    held = {value % modulus for value in held}
    return sorted(held | {value * inverse % modulus for value in held})


def on_device(program, name, x, y):
    out = cupy.empty_like(cupy.asarray(x))
    compiled = program("fields.cu", names=NAMES)
    compiled.run(name, cupy.asarray(x), cupy.asarray(y), out, np.uint32(len(x)), rows=len(x))
    return cupy.asnumpy(out)


def on_cpu(curve, kind, operation, x, y):
    out = np.empty_like(x)
    _cpu._test_operation("portable", curve.name, kind, ON_CPU[operation], x, y, out)
    return out


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("operation", BINARY)
def test_binary_operations(program, curve, kind, operation, rng):
    modulus = curve.modulus(kind)
    values = edge_values(modulus, curve.radix(kind), rng)
    pairs = [(a, b) for a in values for b in values]
    x, y = (curve.montgomery(list(side), kind) for side in zip(*pairs, strict=True))
    out = on_device(program, f"elements<{TYPES[kind]}, {operation}>", x, y)
    law = BINARY[operation]
    assert curve.standard(out, kind) == [law(a, b) % modulus for a, b in pairs]
    assert np.array_equal(out, on_cpu(curve, kind, operation, x, y))


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("operation", UNARY)
def test_unary_operations(program, curve, kind, operation, rng):
    modulus = curve.modulus(kind)
    values = edge_values(modulus, curve.radix(kind), rng)
    x = curve.montgomery(values, kind)
    out = on_device(program, f"elements<{TYPES[kind]}, {operation}>", x, x)
    expected = {
        "Negate": lambda v: -v % modulus,
        "Square": lambda v: v * v % modulus,
        "Invert": lambda v: pow(v, -1, modulus) if v else 0,
    }[operation]
    assert curve.standard(out, kind) == [expected(v) for v in values]
    assert np.array_equal(out, on_cpu(curve, kind, operation, x, x))


@pytest.mark.parametrize("kind", FIELDS)
def test_conversions(program, curve, kind, rng):
    values = edge_values(curve.modulus(kind), curve.radix(kind), rng)
    standard, held = curve.rows(values, kind), curve.montgomery(values, kind)
    to = on_device(program, f"elements<{TYPES[kind]}, ToMontgomery>", standard, standard)
    assert np.array_equal(to, held)
    back = on_device(program, f"elements<{TYPES[kind]}, FromMontgomery>", held, held)
    assert np.array_equal(back, standard)


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("count", [0, 1, 2, 33])
def test_batched_inversion(program, curve, kind, count, rng):
    modulus = curve.modulus(kind)
    values = [rng.randrange(1, modulus) for _ in range(count)]
    x = cupy.asarray(curve.montgomery(values, kind))
    compiled = program("fields.cu", names=NAMES)
    name = f"invert_all<{TYPES[kind]}>"
    compiled.run(name, x, cupy.empty_like(x), np.uint32(count), threads=1)
    assert curve.standard(cupy.asnumpy(x), kind) == [pow(v, -1, modulus) for v in values]


@pytest.mark.parametrize("operation", [*BINARY, *UNARY])
def test_extension(program, curve, operation, rng):
    q = curve.curve.q
    edges = [0, 1, 2, q - 1, q // 2, (1 << 64) - 1, curve.radix("base") % q]
    left = [curve.element(2, a, b) for a in edges for b in edges]
    left += [curve.random_element(2, rng) for _ in range(200)]
    right = rng.sample(left, len(left))
    x, y = (curve.encode(side).reshape(len(side), -1) for side in (left, right))
    out = on_device(program, f"elements<{TYPES['extension']}, {operation}>", x, y)
    law = {
        **BINARY,
        "Negate": lambda a, _: -a,
        "Square": lambda a, _: a * a,
        "Invert": lambda a, _: a.inverse(),
    }[operation]
    assert curve.decode(2, out) == [law(a, b) for a, b in zip(left, right, strict=True)]
    assert np.array_equal(out, on_cpu(curve, "extension", operation, x, y))
