"""What the measured work has to compute and to move, at least, and its share of the ceilings.

Bytes are counted as if caches kept all that is read again, points apart, so that what really moves
is as much or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from prover.backends.cuda.device import Bytes
from prover.backends.cuda.msm import choose_windows
from prover.backends.cuda.transform import plan_passes
from prover.backends.cuda.windows import Windows
from prover.curves import SCALAR_BYTES, Curve

_ENTRY = 8
_WORD = 4


@dataclass(frozen=True)
class Work:
    """Counts that add up.

    Attributes
    ----------
    products
        Modulo r.
    additions
        Mixed ones, in G1 and in G2.
    nbytes
        Read and written.
    """

    products: int = 0
    additions: tuple[int, int] = (0, 0)
    nbytes: int = 0

    def __add__(self, other: Work) -> Work:
        ours, theirs = self.additions, other.additions
        return Work(
            self.products + other.products,
            (ours[0] + theirs[0], ours[1] + theirs[1]),
            self.nbytes + other.nbytes,
        )

    def arithmetic_ms(self, figures: dict[str, Any], curve: Curve) -> float | None:
        """Milliseconds at the rates that were measured; None if one that is wanted was not."""
        rates = figures.get("rates_G_s", {}).get(curve.name, {})
        total = 0.0
        for count, rate in (
            (self.products, figures.get("products_G_s", {}).get(curve.name)),
            (self.additions[0], rates.get("mixed additions G1")),
            (self.additions[1], rates.get("mixed additions G2")),
        ):
            if count > 0 and rate is None:
                return None
            total += count / rate / 1e6 if count > 0 else 0.0
        return total

    def arithmetic_share(self, figures: dict[str, Any], curve: Curve, ms: float) -> float | None:
        """Share of ``ms`` that the arithmetic takes at the rates that were measured."""
        floor = self.arithmetic_ms(figures, curve)
        return None if floor is None else floor / ms

    def copy_share(self, figures: dict[str, Any], ms: float) -> float | None:
        """Share of ``ms`` that copying as many bytes takes at the rate that was measured."""
        rate = figures.get("copy_TB_s")
        return None if rate is None else self.nbytes / rate / 1e9 / ms


def percent(share: float | None) -> str:
    """A cell of a table."""
    return "-" if share is None else f"{100 * share:.0f} %"


def split_work(log: int) -> Work:
    """A transform one way: of 2^log elements, of which every pass reads and writes all."""
    n = 1 << log
    # The last stage of a pass has a twiddle a block, and those of the stages before are among them.
    twiddles = sum(1 << (first + stages - 1) for first, stages in plan_passes(log))
    nbytes = SCALAR_BYTES * (2 * n * len(plan_passes(log)) + twiddles)
    return Work(products=log * n // 2, nbytes=nbytes)


def coset_work(log: int) -> Work:
    """There and back; one pass turns round, and two products an element scale in between."""
    n = 1 << log
    turned = Work(products=2 * n, nbytes=-2 * n * SCALAR_BYTES)
    return split_work(log) + split_work(log) + turned


def sparse_work(rows: int, terms: int, signals: int, nonzero: int) -> Work:
    """Products of a matrix of ``terms`` terms, ``nonzero`` of which meet a value that is not 0."""
    of_row = 2 * _WORD + SCALAR_BYTES  # where it starts, its place in the order, its sum
    nbytes = rows * of_row + terms * _ENTRY + signals * SCALAR_BYTES
    return Work(products=nonzero, nbytes=nbytes)


def sort_work(windows: Windows, n: int, dense: int) -> Work:
    """Sorting the digits of ``n`` scalars, ``dense`` of them other than 0, 1 and -1."""
    digits, passes = windows.count * dense, len(windows.passes())
    codes = digits * 3 * _WORD  # written, then read to count and to scatter
    entries = digits * _ENTRY * (3 * passes - 2)  # written by each pass, read twice by the next
    return Work(nbytes=SCALAR_BYTES * (n + dense) + codes + entries)


def add_work(curve: Curve, group: int, windows: Windows, dense: int, ones: int) -> Work:
    """One addition a digit and one a scalar of one: its entry and its point are read."""
    count = windows.count * dense + ones
    additions = (count, 0) if group == 1 else (0, count)
    return Work(additions=additions, nbytes=count * (_ENTRY + curve.point_bytes(group)))


def proof_work(curve: Curve, log: int, witness: Bytes, terms: int) -> Work:
    """A whole proof with a resident key of domain 2^log and matrices of ``terms`` terms."""
    n, signals = 1 << log, len(witness)
    words = np.ascontiguousarray(witness).view(np.uint64)
    small = ~words[:, 1:].any(axis=1)
    zeros = int((small & (words[:, 0] == 0)).sum())
    ones = int((small & (words[:, 0] == 1)).sum())
    dense = signals - zeros - ones
    of_w, of_h = choose_windows(curve, dense), choose_windows(curve, n)
    nonzero = terms * (signals - zeros) // signals
    parts = [
        sparse_work(2 * n, terms, signals, nonzero),
        *[coset_work(log)] * 3,
        # a b, then a b - c out of Montgomery form
        Work(products=3 * n, nbytes=7 * n * SCALAR_BYTES),
        sort_work(of_h, n, n),
        add_work(curve, 1, of_h, n, 0),
        sort_work(of_w, signals, dense),
        *[add_work(curve, 1, of_w, dense, ones)] * 3,
        add_work(curve, 2, of_w, dense, ones),
    ]
    return sum(parts, Work())
