"""Number-theoretic transforms in device memory: the passes of one, and the table they read."""

from itertools import accumulate, combinations_with_replacement

import numpy as np

from prover.backends.cuda.device import Array, Device
from prover.curves import SCALAR_BYTES, Curve

TILE_LOG = 10
HELD_LOG = 3
TILE_THREADS = 1 << (TILE_LOG - HELD_LOG)
"""Shared with kernels/ntt_pass.cuh: a block's elements, a thread's, and a block's threads."""

MOST_STAGES = 9
"""Stages of a pass: with more, a tile's columns are single elements of 32 bytes."""

_SMALL_THREADS = 256


def plan_passes(log: int, most: int = MOST_STAGES) -> list[tuple[int, int]]:
    """(first stage, number of stages) of each pass of a transform of 2^log elements.

    As few passes as can be; of these, as few rounds of `HELD_LOG` stages; of these, none longer
    than need be, and the longest last, where elements lie side by side whatever its length. log is
    at least `TILE_LOG`.
    """

    def cost(lengths: tuple[int, ...]) -> tuple[int, int]:
        return sum(-(-length // HELD_LOG) for length in lengths), max(lengths)

    choices = combinations_with_replacement(range(HELD_LOG, most + 1), -(-log // most))
    lengths = min((choice for choice in choices if sum(choice) == log), key=cost)
    return list(zip(accumulate((0, *lengths[:-1])), lengths, strict=True))


def montgomery(curve: Curve, values: list[int]) -> np.ndarray:
    """Rows of scalars in Montgomery form, shape (n, 32)."""
    rows = [(value << 8 * SCALAR_BYTES) % curve.r for value in values]
    data = b"".join(row.to_bytes(SCALAR_BYTES, "little") for row in rows)
    return np.frombuffer(data, np.uint8).reshape(len(values), SCALAR_BYTES)


class Transform:
    """The transforms of one curve on one device, in place.

    Vectors have shape (N, 32), or (batch, N, 32) to share the twiddles, in Montgomery form. The
    table of twiddles, N / 2 of them in bit-reversed order, is kept: a longer one begins with every
    shorter one.
    """

    def __init__(self, device: Device, curve: Curve, most_stages: int = MOST_STAGES) -> None:
        self._device = device
        self.curve = curve
        self._most_stages = most_stages
        self._twiddles: Array | None = None
        self._factors: dict[int, Array] = {}

    @staticmethod
    def table_bytes(n: int) -> int:
        """Bytes of the table of twiddles for vectors of ``n`` elements."""
        return max(1, n // 2) * SCALAR_BYTES

    def room_for(self, n: int) -> int:
        """Bytes of the table when it has served vectors of ``n`` elements, too."""
        held = 0 if self._twiddles is None else int(self._twiddles.nbytes)
        return max(held, self.table_bytes(n))

    def odd_coset(self, x: Array) -> None:
        """From values at the N-th roots of unity to values at the odd 2N-th roots.

        x <- NTT(omega_2N^i iNTT(x)_i), natural order in and out.
        """
        log, batch = _sizes(x)
        twiddles, factors = self._table(log), self._factors_of(log)
        if log < TILE_LOG:
            arguments = (x, twiddles, factors, np.int32(log))
            self._launch("odd_coset_of_few", batch, _SMALL_THREADS, *arguments)
            return
        *outer, inner = plan_passes(log, self._most_stages)
        for stages in outer:
            self._pass("split_pass", x, (twiddles,), stages)
        self._pass("turn_pass", x, (twiddles, factors), inner)
        for stages in reversed(outer):
            self._pass("merge_pass", x, (twiddles,), stages)

    def split(self, x: Array) -> None:
        """The inverse transform times N, from natural to bit-reversed order; N >= 2^`TILE_LOG`."""
        log, _ = _sizes(x)
        for stages in plan_passes(log, self._most_stages):
            self._pass("split_pass", x, (self._table(log),), stages)

    def merge(self, x: Array) -> None:
        """The forward transform, from bit-reversed to natural order; N >= 2^`TILE_LOG`."""
        log, _ = _sizes(x)
        for stages in reversed(plan_passes(log, self._most_stages)):
            self._pass("merge_pass", x, (self._table(log),), stages)

    def drop(self) -> None:
        """Forget all tables."""
        self._twiddles = None
        self._factors.clear()

    def _pass(
        self, kernel: str, x: Array, tables: tuple[Array, ...], stages: tuple[int, int]
    ) -> None:
        log, batch = _sizes(x)
        blocks = batch << (log - TILE_LOG)
        numbers = (np.int32(log), *map(np.int32, stages), np.uint32(batch))
        self._launch(kernel, blocks, TILE_THREADS, x, *tables, *numbers)

    def _table(self, log: int) -> Array:
        count = max(1, 1 << log >> 1)
        if self._twiddles is None or len(self._twiddles) < count:
            self._twiddles = None  # its memory first
            table = self._device.empty((count, SCALAR_BYTES))
            table[:1] = self._device.array(montgomery(self.curve, [1]))
            level = 0
            while 1 << level < count:
                root = montgomery(self.curve, [self.curve.root_of_unity(4 << level)])
                filled = 1 << level
                threads = _SMALL_THREADS
                arguments = (table, self._device.array(root), np.uint32(filled))
                self._launch("extend_twiddles", -(-filled // threads), threads, *arguments)
                level += 1
            self._twiddles = table
        return self._twiddles

    def _factors_of(self, log: int) -> Array:
        """1 / N and omega_2N / N."""
        if log not in self._factors:
            inverse = pow(1 << log, -1, self.curve.r)
            root = self.curve.root_of_unity(2 << log)
            self._factors[log] = self._device.array(
                montgomery(self.curve, [inverse, root * inverse])
            )
        return self._factors[log]

    def _launch(self, kernel: str, blocks: int, threads: int, *arguments: object) -> None:
        self._device.launch(self.curve, kernel, blocks, threads, *arguments)


def _sizes(x: Array) -> tuple[int, int]:
    n = x.shape[-2]
    return int(n).bit_length() - 1, x.size // (n * SCALAR_BYTES)
