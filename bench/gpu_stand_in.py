"""Keys and witnesses that are made up, where no real circuit is at hand.

Of the points a few thousand are different, which costs a sum the same as if all were.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import numpy as np

from bench.kernels import points as different_points
from bench.kernels import scalars as uniform_scalars
from prover.backends.cpu import _cpu
from prover.backends.cuda.device import Bytes
from prover.curves import Curve
from prover.formats.wtns import Witness
from prover.formats.zkey import COEFFICIENT, ProvingKey

WITNESSES = ("uniform", "35/35/30")
"""Uniform below 2^252; 35 % zeros, 35 % ones, the rest uniform."""

_UNUSED = 3
"""By how much the stand-ins have fewer signals than rows."""


def random_scalars(shape: tuple[int, ...], rng: np.random.Generator) -> Bytes:
    """Rows below both orders."""
    return uniform_scalars(int(np.prod(shape)), rng).reshape(*shape, 32)


def witness_values(kind: str, n: int, rng: np.random.Generator) -> Bytes:
    """``n`` values in standard form of one of `WITNESSES`; the first is one."""
    values = uniform_scalars(n, rng)
    if kind == "35/35/30":
        share = rng.random(n)
        values[share < 0.7] = 0
        values[(share >= 0.35) & (share < 0.7), 0] = 1
    values[0] = 0
    values[0, 0] = 1
    return values


def terms(domain: int, signals: int, rng: np.random.Generator) -> Bytes:
    """Three terms a row of either matrix, in the order of the constraints, of few coefficients."""
    records = np.zeros(6 * domain, COEFFICIENT)
    records["matrix"] = np.tile(np.repeat(np.arange(2, dtype=np.uint32), 3), domain)
    records["constraint"] = np.repeat(np.arange(domain, dtype=np.uint32), 6)
    records["signal"] = rng.integers(0, signals, 6 * domain)
    records["value"] = uniform_scalars(50, rng)[rng.integers(0, 50, 6 * domain)]
    return records.view(np.uint8).reshape(-1, COEFFICIENT.itemsize)


@lru_cache(maxsize=1)
def terms_of(log: int) -> Bytes:
    """`terms` of the stand-in of a domain; they take a while to make."""
    return terms(1 << log, (1 << log) - _UNUSED, np.random.default_rng(log))


class _StandIn:
    """What `groth16.prove` asks of a key and a witness; their proof is false."""

    path = "stand-in"
    public = 1

    def __init__(self, curve: Curve, log: int, rng: np.random.Generator) -> None:
        self.curve = curve
        self.domain = 1 << log
        self.signals = self.domain - _UNUSED
        self.coefficients = terms_of(log)
        some = {
            group: different_points(curve.name, group, min(1 << 12, self.domain), rng)
            for group in (1, 2)
        }
        self.h1, b2 = (np.resize(p, (self.domain, p.shape[1])) for p in some.values())
        self.a1 = self.b1 = self.h1[: self.signals]
        self.b2 = b2[: self.signals]
        self.c1 = self.h1[: self.signals - self.public - 1]
        self.alpha1 = self.beta1 = self.delta1 = self.h1[:1]
        self.beta2 = self.delta2 = self.b2[:1]
        self.values = np.empty(0, np.uint8)

    def check(self) -> None:
        pass

    def read(self, out: Bytes, threads: int = 0) -> None:
        _cpu.copy(self.values, out, threads)

    def drop(self, rows: Bytes | None = None) -> None:
        pass


_stand_ins: dict[tuple[str, int], _StandIn] = {}


def stand_in(curve: Curve, log: int, kind: str) -> tuple[ProvingKey, Witness]:
    """A key of domain 2^log and a witness, the same object; the key is made once."""
    rng = np.random.default_rng(log)
    made = _stand_ins.get((curve.name, log))
    if made is None:
        _stand_ins.clear()
        made = _stand_ins[curve.name, log] = _StandIn(curve, log, rng)
    made.values = witness_values(kind, made.signals, rng)
    return cast(ProvingKey, made), cast(Witness, made)
