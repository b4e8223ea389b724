"""Field arithmetic against Python integers, in every arithmetic that is compiled."""

import operator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prover.backends.cpu import _cpu

BINARY = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def edge_values(modulus: int, radix: int) -> list[int]:
    values = {0, 1, 2, modulus - 1, modulus - 2, modulus // 2, modulus // 2 + 1}
    values |= {radix % modulus, radix**2 % modulus, -radix % modulus, pow(radix, -1, modulus)}
    for bits in (31, 32, 33, 63, 64, 65, 127, 128, 192, 224, modulus.bit_length() - 1):
        values |= {(1 << bits) - 1, 1 << bits, (1 << bits) + 1, modulus - (1 << bits)}
    return sorted(v % modulus for v in values)


def operate(arithmetic, model, field, operation, x, y):
    left, right = model.montgomery(field, x), model.montgomery(field, y)
    out = np.empty_like(left)
    _cpu._test_operation(arithmetic, model.name, field, operation, left, right, out)
    return model.standard(field, out), out


@pytest.mark.parametrize("field", ["scalar", "base"])
@pytest.mark.parametrize("operation", BINARY)
def test_binary_operations(any_arithmetic, model, field, operation):
    modulus = model.modulus(field)
    values = edge_values(modulus, model.radix(field))
    pairs = [(x, y) for x in values for y in values]
    x, y = (list(side) for side in zip(*pairs, strict=True))
    result, raw = operate(any_arithmetic, model, field, operation, x, y)
    assert result == [BINARY[operation](a, b) % modulus for a, b in pairs]
    assert _all_reduced(raw, modulus)


@pytest.mark.parametrize("field", ["scalar", "base"])
def test_unary_operations(any_arithmetic, model, field, rng):
    modulus = model.modulus(field)
    x = edge_values(modulus, model.radix(field)) + [rng.randrange(modulus) for _ in range(20)]
    for operation, expected in {
        "neg": [-v % modulus for v in x],
        "sqr": [v * v % modulus for v in x],
        "inverse": [pow(v, -1, modulus) if v else 0 for v in x],
    }.items():
        result, raw = operate(any_arithmetic, model, field, operation, x, x)
        assert result == expected, operation
        assert _all_reduced(raw, modulus)


@pytest.mark.parametrize("field", ["scalar", "base"])
@pytest.mark.parametrize("count", [0, 1, 2, 33])
def test_batched_inversion(any_arithmetic, model, field, count, rng):
    modulus = model.modulus(field)
    x = [rng.randrange(1, modulus) for _ in range(count)]
    result, _ = operate(any_arithmetic, model, field, "inverse_batch", x, x)
    assert result == [pow(v, -1, modulus) for v in x]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("field", ["scalar", "base"])
def test_limb_patterns(any_arithmetic, model, field, data):
    """Operands (as the limbs hold them) made of extreme limbs, where carries go wrong."""
    modulus, width = model.modulus(field), model.field_width(field)
    limb = st.sampled_from([0, 1, 2**31, 2**32 - 2, 2**32 - 1]) | st.integers(0, 2**32 - 1)
    limbs = st.lists(limb, min_size=width // 4, max_size=width // 4)
    held = [sum(v << (32 * i) for i, v in enumerate(data.draw(limbs))) % modulus for _ in range(2)]
    inverse = pow(model.radix(field), -1, modulus)
    x, y = ([v * inverse % modulus] for v in held)
    for operation, expected in BINARY.items():
        result, _ = operate(any_arithmetic, model, field, operation, x, y)
        assert result == [expected(x[0], y[0]) % modulus]


@pytest.mark.parametrize("operation", ["add", "sub", "neg", "mul", "sqr", "inverse"])
def test_extension(any_arithmetic, model, operation, rng):
    q, fq2 = model.q, model.ecc.FQ2
    edges = [0, 1, 2, q - 1, q // 2, (1 << 64) - 1]
    elements = [(a, b) for a in edges for b in edges]
    elements += [(rng.randrange(q), rng.randrange(q)) for _ in range(20)]
    others = rng.sample(elements, len(elements))
    x, y = (
        model.montgomery("base", [c for pair in side for c in pair]).reshape(len(elements), -1)
        for side in (elements, others)
    )
    out = np.empty_like(x)
    _cpu._test_operation(any_arithmetic, model.name, "extension", operation, x, y, out)
    law = {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "neg": lambda a, _: -a,
        "sqr": lambda a, _: a * a,
        "inverse": lambda a, _: a.inv() if a != fq2([0, 0]) else a,
    }[operation]
    expected = [law(fq2(a), fq2(b)) for a, b in zip(elements, others, strict=True)]
    values = model.standard("base", out.reshape(-1, model.width))
    assert values == [int(c) for element in expected for c in element.coeffs]


@pytest.mark.parametrize("field", ["scalar", "base"])
def test_conversions(arithmetic, model, field, to_rows, to_integers, unaligned):
    modulus = model.modulus(field)
    values = edge_values(modulus, model.radix(field))
    standard = unaligned(to_rows(values, model.field_width(field)))
    out = np.empty_like(standard)
    _cpu.to_montgomery(model.name, field, standard, out)
    assert np.array_equal(out, model.montgomery(field, values))
    _cpu.from_montgomery(model.name, field, out, out)
    assert to_integers(out) == values


def test_arithmetic_is_what_the_cpu_has(arithmetic):
    assert _cpu.arithmetic() == arithmetic
    with pytest.raises(ValueError, match="quantum"):
        _cpu._use_arithmetic("quantum")


def _all_reduced(raw: np.ndarray, modulus: int) -> bool:
    return all(int.from_bytes(row.tobytes(), "little") < modulus for row in raw)
