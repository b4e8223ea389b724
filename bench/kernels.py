"""Times of the CPU kernels: milliseconds, best of a few runs, both arithmetics in one process.

python -m bench.kernels [LOG2 ...]     (default: 12 14 16)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench.command_line import Distinct, count, log2
from prover.backends.cpu import _cpu

Bytes = NDArray[np.uint8]
CURVES = ("bn128", "bls12381")


def best_ms(work: Callable[[], object], repeats: int) -> float:
    """Shortest of ``repeats`` runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def scalars(n: int, rng: np.random.Generator) -> Bytes:
    """``n`` uniform rows of 252 bits, which is below both orders."""
    data = rng.integers(0, 256, (n, 32), np.uint8)
    data[:, 31] &= 0x0F
    return data


def points(curve: str, group: int, n: int, rng: np.random.Generator) -> Bytes:
    """``n`` distinct points: sums of one of 2^k and one of 2^k others."""
    base = _cpu.generator(curve, group)
    side = 1
    while side * side < n:
        side *= 2
    rows = [[_cpu.scale(curve, group, base, s) for s in scalars(side, rng)] for _ in range(2)]
    out = [_cpu.add(curve, group, p, q) for p in rows[0] for q in rows[1]]
    return np.stack(out[:n])


def coefficients(n: int, rng: np.random.Generator) -> Bytes:
    """Two terms of each matrix a constraint, in order."""
    data = np.empty((4 * n, 44), np.uint8)
    keys = np.empty((4 * n, 3), np.uint32)
    keys[:, 0] = np.tile([0, 0, 1, 1], n)
    keys[:, 1] = np.repeat(np.arange(n), 4)
    keys[:, 2] = rng.integers(0, n, 4 * n)
    data[:, :12] = keys.view(np.uint8)
    data[:, 12:] = scalars(4 * n, rng)
    return data


def measure(curve: str, log: int, given: dict[int, Bytes], repeats: int) -> dict[str, float]:
    """Milliseconds of every kernel with the arithmetic in use."""
    rng = np.random.default_rng(log)
    n = 1 << log
    k = scalars(n, rng)
    out: dict[str, float] = {}
    for group, p in given.items():
        workspace = np.zeros(_cpu.msm_workspace(curve, group, n), np.uint8)
        out[f"msm g{group}"] = best_ms(
            lambda g=group, p=p, w=workspace: _cpu.msm(curve, g, p, k, w),  # type: ignore[misc]
            repeats,
        )
    out |= measure_masks(curve, given[1], k, repeats)
    x = k.copy()
    out["odd coset"] = best_ms(lambda: _cpu.odd_coset(curve, x), repeats)
    terms = coefficients(n, rng)
    a, b, c = (np.empty_like(k) for _ in range(3))

    def in_two() -> None:
        _cpu.sparse_product(curve, terms, k, a, b)
        _cpu.multiply(curve, a, b, c)

    out["a b, then c"] = best_ms(in_two, repeats)
    out["a b c"] = best_ms(lambda: _cpu.sparse_abc(curve, terms, k, a, b, c), repeats)
    return out


def measure_masks(curve: str, points: Bytes, scalars: Bytes, repeats: int) -> dict[str, float]:
    """Milliseconds of a sum in G1 of which every other point is infinity, and with it masked."""
    half = points.copy()
    half[::2] = 0
    finite = half.any(axis=1).view(np.uint8).reshape(-1, 1)
    workspace = np.zeros(_cpu.msm_workspace(curve, 1, len(half)), np.uint8)

    def run(mask: Bytes | None) -> None:
        total = _cpu.PointSum(curve, 1, half, scalars, workspace, mask)
        total.split()
        total.prepare()
        total.add_ones()
        total.add_dense()

    return {
        "half of g1": best_ms(lambda: run(None), repeats),
        "masked": best_ms(lambda: run(finite), repeats),
    }


def main() -> None:
    """Print a table a curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "logs", nargs="*", type=log2, action=Distinct, default=[12, 14, 16], metavar="LOG2"
    )
    parser.add_argument("--repeats", type=count, default=3)
    options = parser.parse_args()
    best = _cpu.arithmetic()
    print(f"{_cpu.default_threads()} threads, ms, best of {options.repeats}")
    for curve in CURVES:
        rng = np.random.default_rng(7)
        largest = 1 << max(options.logs)
        pool = {group: points(curve, group, largest, rng) for group in (1, 2)}
        for log in options.logs:
            given = {group: p[: 1 << log] for group, p in pool.items()}
            for name in dict.fromkeys(["portable", best]):
                _cpu._use_arithmetic(name)
                row = measure(curve, log, given, options.repeats)
                _cpu._use_arithmetic(best)
                cells = "  ".join(f"{key} {value:8.1f}" for key, value in row.items())
                print(f"{curve:9} 2^{log:<3} {name:9} {cells}", flush=True)


if __name__ == "__main__":
    main()
