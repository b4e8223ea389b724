"""How a multi-scalar multiplication cuts its scalars, and what memory that takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

MAX_WIDTH = 21
"""Two passes of ten bits sort the buckets of a window; one bit is the sign."""

# Costs in digits of scalars, each of which is sorted twice and costs one mixed addition: fitted to
# the times of every kernel on an H200 (docs/decisions/014-gpu-msm.md). A bucket takes two full
# additions. Every bit of a window's width makes the reduction longer by a few additions, every
# window the last sum by one, while the device is all but idle.
_PER_BUCKET = 1.9
_PER_BIT = 95_000
_PER_WINDOW = 18_000


@dataclass(frozen=True)
class Windows:
    """An even cut of scalars of ``bits`` bits into ``count`` windows, as msm.cuh has it."""

    bits: int
    count: int

    @property
    def width(self) -> int:
        """Bits of the widest window."""
        return -(-self.bits // self.count)

    @property
    def buckets(self) -> int:
        """Buckets of a window: digits lie between minus and plus this."""
        return 1 << (self.width - 1)

    def cost(self, n: int) -> float:
        """Estimated time for ``n`` dense scalars, in digits of them."""
        begins = [i * self.bits // self.count for i in range(self.count + 1)]
        used = sum(1 << (end - begin - 1) for begin, end in pairwise(begins))
        latency = _PER_BIT * self.width + _PER_WINDOW * self.count
        return self.count * n + _PER_BUCKET * used + latency

    def passes(self) -> list[int]:
        """Bits that each pass of the sort takes, from the low ones."""
        bits = self.width - 1
        return [bits] if bits <= 10 else [(bits + 1) // 2, bits // 2]

    def steps(self) -> list[int]:
        """Steps of the reduction: logarithms of the group sizes; all but the first are equal."""
        bits = self.width - 1
        if bits <= 4:
            return [bits]
        first = 3 if bits % 2 else 4
        return [first, *[2] * ((bits - first) // 2)]


def possible(bits: int) -> Iterator[Windows]:
    """Every even cut with windows of 2 to `MAX_WIDTH` bits."""
    before = 0
    for width in range(MAX_WIDTH, 1, -1):
        count = -(-bits // width)
        if count != before:
            yield Windows(bits, count)
        before = count
