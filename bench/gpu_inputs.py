"""Scalars and points for the GPU bench."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prover.backends.cpu import _cpu
from prover.curves import Curve

Bytes = NDArray[np.uint8]

SCALARS = ("random", "zero", "one", "equal", "bytes", "edges", "mix 35/35/30")
POINTS = ("one", "inverse", "infinite", "distinct")
KERNELS = (
    *("classify_scalars", "cut_scalars", "count_codes", "count_entries", "sum_count_rows"),
    *("scan_row_sums", "scan_count_rows", "scatter_codes", "scatter_entries", "accumulate_runs"),
    *("fold_heads", "reduce_buckets", "sum_windows", "combine"),
)
"""Every kernel of a multi-scalar multiplication."""


def encode(values: list[int], width: int) -> Bytes:
    """Little-endian rows."""
    data = b"".join(value.to_bytes(width, "little") for value in values)
    return np.frombuffer(data, np.uint8).reshape(len(values), width).copy()


def scalars(curve: Curve, n: int, kind: str, rng: np.random.Generator) -> Bytes:
    """``n`` rows of one of `SCALARS`, standard form."""
    r = curve.r
    data = _below(r, n, rng)
    if kind == "random":
        return data
    if kind in ("zero", "bytes"):
        data[:, 0 if kind == "zero" else 1 :] = 0
    elif kind == "equal":
        data[:] = data[0]
    elif kind == "mix 35/35/30":
        which = rng.random(n)
        data[which < 0.7] = 0
        data[(which >= 0.35) & (which < 0.7), 0] = 1
    else:
        few = [1, r - 1] if kind == "one" else [r - 1, r - 2, r // 2, r // 2 + 1, 2, 1 << 252]
        data[:] = encode(few, 32)[rng.integers(0, len(few), n)]
    return data


def _below(r: int, n: int, rng: np.random.Generator) -> Bytes:
    """Uniform below the top 32 bits of r, which is as good as below r."""
    data = rng.integers(0, 1 << 32, (n, 8), np.uint32)
    data[:, 7] = rng.integers(0, r >> 224, n, np.uint32)
    return data.view(np.uint8)


def elements(n: int, width: int, modulus: int, rng: np.random.Generator) -> Bytes:
    """Rows below the modulus: random ones, and ones of extreme limbs, where carries go wrong."""
    limbs = rng.integers(0, 1 << 32, (n, width // 4), np.uint32)
    extreme = rng.choice(np.array([0, 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32), limbs.shape)
    limbs[n // 2 :] = extreme[n // 2 :]
    top = modulus >> (8 * width - 32)
    limbs[:, -1] %= top
    data = limbs.view(np.uint8)
    edges = [0, 1, 2, modulus - 1, modulus - 2, (1 << (8 * width)) % modulus, modulus // 2]
    data[: len(edges)] = encode(edges, width)
    return data


def few_points(curve: Curve, group: int, rng: np.random.Generator) -> Bytes:
    """64 multiples of the generator and their negatives."""
    base = _cpu.generator(curve.name, group)
    rows = [_cpu.scale(curve.name, group, base, s) for s in scalars(curve, 64, "random", rng)]
    return np.stack([*rows, *(_cpu.negate(curve.name, group, row) for row in rows)])


def pick_points(few: Bytes, n: int, kind: str, rng: np.random.Generator) -> Bytes:
    """``n`` rows of one of `POINTS`."""
    half = len(few) // 2
    if kind == "one":
        return np.repeat(few[:1], n, axis=0)
    if kind == "inverse":
        return few[half * rng.integers(0, 2, n)]
    points = few[rng.integers(0, len(few), n)]
    if kind == "infinite":
        points[rng.random(n) < 0.4] = 0
    return points


def sum_of_multiples(curve: Curve, group: int, factors: Bytes) -> Bytes:
    """The sum of factors[i] (i + 1) G, by one scalar multiplication."""
    halves = factors.view(np.uint16)
    total = 0
    for begin in range(0, len(halves), 1 << 20):
        part = halves[begin : begin + (1 << 20)].astype(np.uint64)
        weights = np.arange(begin + 1, begin + 1 + len(part), dtype=np.uint64)
        sums = (part * weights[:, None]).sum(axis=0)  # below 2^(16 + 25 + 20)
        total += sum(int(value) << (16 * k) for k, value in enumerate(sums))
    scalar = encode([total % curve.r], 32)[0]
    return _cpu.scale(curve.name, group, _cpu.generator(curve.name, group), scalar)
