"""Multi-scalar multiplication on the device: which kernels run on what.

The scalars are sorted by bucket first (`sort_scalars`), then points are added up (`add_points`):
the same sorted scalars serve several sets of points. docs/decisions/014-gpu-msm.md tells why it is
done this way.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import bigmem
from prover.backends.base import Bytes
from prover.backends.cuda.windows import Windows, possible
from prover.backends.cuda.workspace import Workspace
from prover.curves import Curve

CLASSIFY_TILE = 2048
SORT_TILE = 8192
SORT_THREADS = 256
SCAN_THREADS = 1024
CLASSIFY_THREADS = 256
ADD_THREADS = 128
TEAM = 4
SHORTEST_PART = 8
FOLD_STEP = 4
WAVES = 4
"""Threads that add points, as a multiple of those resident at once: enough for multiprocessors that
finish early to take some of what is left."""

_ENTRY = 8
_WORD = 4
_SLACK = 1 << 24
"""More than a tile, or the threads that add points: by so much kernels round up what they count."""


class Kernels(Protocol):
    """A compiled program and the device that it runs on.

    Arrays are of bytes, on the device.
    """

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        """Start ``blocks`` blocks of a kernel; arguments are arrays and NumPy scalars."""

    def resident_blocks(self, name: str, threads: int) -> int:
        """Blocks of a kernel that the device holds at once."""

    def to_host(self, data: Any) -> NDArray[np.uint8]:
        """Wait for what was started, and copy."""


@dataclass(frozen=True)
class SortedScalars:
    """What `add_points` wants to know of the scalars.

    Attributes
    ----------
    windows
        How the scalars are cut.
    entries, count
        Bucket and point of every digit that is not zero, by bucket; how many (on the device).
    dense
        Scalars other than 0, 1 and -1; entries are at most this times the windows.
    ones, ones_count
        Indices of the scalars 1 and -1.
    """

    windows: Windows
    entries: Any
    count: Any
    dense: int
    ones: Any
    ones_count: int


@dataclass(frozen=True)
class Tail:
    """Sums of the windows, and where `combine` puts their sum."""

    windows: Windows
    sums: Any
    ones: Any
    result: Any


@cache
def most_scalars(curve: Curve) -> int:
    """The most scalars that `sort_scalars` takes: kernels count their digits in 32 bits.

    So many are cut into the fewest windows, whose buckets are few beside them.
    """
    fewest = min(windows.count for windows in possible(curve.r.bit_length()))
    return ((1 << 32) - _SLACK) // fewest


@cache
def tail_bytes(curve: Curve, group: int) -> int:
    """Bytes that `add_points` wants for its result."""
    return (_most_windows(curve) + 2) * 2 * curve.point_bytes(group)


def sort_workspace(curve: Curve, n: int) -> int:
    """Bytes that `sort_scalars` wants for ``n`` scalars."""
    counted = Workspace()
    _Lists(counted, n)
    _SortBuffers(counted, choose_windows(curve, n), n)
    return counted.used


def add_workspace(curve: Curve, group: int, n: int, kernels: Kernels) -> int:
    """Bytes that `add_points` wants for ``n`` scalars, whatever they are."""
    # Fewer dense scalars make more, narrower windows, and those have fewer buckets.
    counted = Workspace()
    windows = choose_windows(curve, n)
    blocks = _blocks(kernels, _most_windows(curve) * n)
    _AddBuffers(counted, windows, 2 * curve.point_bytes(group), blocks)
    return counted.used


def choose_windows(curve: Curve, dense: int, limit: int | None = None, n: int = 0) -> Windows:
    """The windows of the least estimated time for ``dense`` scalars.

    With a ``limit``, only those whose buffers, beside the lists of ``n`` scalars, fit into so many
    bytes.
    """

    def fits(windows: Windows) -> bool:
        if limit is None:
            return True
        counted = Workspace()
        _Lists(counted, n)
        _SortBuffers(counted, windows, dense)
        return counted.used <= limit

    candidates = [windows for windows in possible(curve.r.bit_length()) if fits(windows)]
    return min(candidates, key=lambda windows: windows.cost(dense))


def sort_scalars(kernels: Kernels, curve: Curve, scalars: Any, workspace: Any) -> SortedScalars:
    """Sort the digits of scalars by bucket; waits once for the device.

    All of it is in the layers ``split vectors`` and ``prep MSM``.

    Parameters
    ----------
    scalars
        Rows of 32 bytes on the device, standard form, aligned to 16 bytes.
    workspace
        `sort_workspace` bytes on the device; it holds the result.
    """
    n = len(scalars)
    with bigmem.layer("split vectors"):
        space = Workspace(workspace)
        lists = _Lists(space, n)
        lists.counts.fill(0)
        if n > 0:
            kernels.launch(
                "classify_scalars",
                _divide(n, CLASSIFY_TILE),
                CLASSIFY_THREADS,
                *(scalars, np.uint32(n), lists.dense, lists.ones, lists.counts),
            )
        dense, ones = (int(count) for count in kernels.to_host(lists.counts).view(np.uint32))
    with bigmem.layer("prep MSM"):
        windows = choose_windows(curve, dense, workspace.size, n)
        buffers = _SortBuffers(space, windows, dense)
        if dense > 0:
            kernels.launch(
                "cut_scalars",
                _divide(dense, ADD_THREADS),
                ADD_THREADS,
                *(scalars, lists.dense, np.uint32(dense), np.int32(windows.count), buffers.codes),
            )
            entries = _sort_codes(kernels, windows, dense, lists.dense, buffers)
        else:
            buffers.starts.fill(0)
            entries = buffers.codes
        count = buffers.starts[_WORD * windows.count :]
        return SortedScalars(windows, entries, count, dense, lists.ones, ones)


def add_points(
    kernels: Kernels,
    curve: Curve,
    group: int,
    points: Any,
    scalars: SortedScalars,
    workspace: Any,
    tail: Any,
) -> Tail:
    """Start the sums of scalars times points of each window; `combine` makes one of them.

    Parameters
    ----------
    points
        Affine rows as a zkey has them, on the device, aligned to 16 bytes.
    workspace
        `add_workspace` bytes on the device.
    tail
        `tail_bytes` on the device; it holds the result.
    """
    windows = scalars.windows
    blocks = _blocks(kernels, windows.count * scalars.dense + scalars.ones_count)
    space = Workspace(workspace)
    xyzz = 2 * curve.point_bytes(group)
    buffers = _AddBuffers(space, windows, xyzz, blocks)
    buffers.buckets.fill(0)  # infinity
    ones_bucket = windows.count * windows.buckets
    kernels.launch(
        "accumulate_runs",
        blocks,
        ADD_THREADS,
        *(points, scalars.entries, scalars.count, scalars.ones, np.uint32(scalars.ones_count)),
        *(np.uint32(ones_bucket), buffers.buckets, buffers.heads[0], buffers.head_buckets[0]),
    )
    _fold(kernels, buffers, blocks * ADD_THREADS)
    end = windows.count * xyzz
    sums, ones, result = tail[:end], tail[end : end + xyzz], tail[end + xyzz : end + 2 * xyzz]
    ones[...] = buffers.buckets[-xyzz:]
    _reduce(kernels, windows, buffers, sums)
    return Tail(windows, sums, ones, result)


def combine(kernels: Kernels, tail: Tail) -> Any:
    """Start the last, serial part of a sum, four threads, and return its result (see `affine`)."""
    arguments = (tail.sums, np.int32(tail.windows.count), tail.ones, tail.result)
    kernels.launch("combine", 1, TEAM, *arguments)
    return tail.result


def affine(curve: Curve, group: int, xyzz: NDArray[np.uint8]) -> Bytes:
    """The affine row, shape (1, bytes of a point), of a row (X, Y, ZZ, ZZZ).

    One inversion and a few products: Python's integers take 0.1 ms, a thread of the device more.
    """
    width, q = curve.coordinate_bytes, curve.q
    radix = 1 << (8 * width)
    flat = [
        int.from_bytes(xyzz[i : i + width].tobytes(), "little") for i in range(0, len(xyzz), width)
    ]
    x, y, zz, zzz = (flat[i : i + group] for i in range(0, 4 * group, group))
    if not any(zz):
        return np.zeros((1, curve.point_bytes(group)), np.uint8)

    def divide(a: list[int], b: list[int]) -> list[int]:
        # The factor R takes the place of the one that the inverse took away.
        scale = pow(sum(c * c for c in b), -1, q) * radix
        if group == 1:
            return [a[0] * b[0] * scale % q]
        return [(a[0] * b[0] + a[1] * b[1]) * scale % q, (a[1] * b[0] - a[0] * b[1]) * scale % q]

    encoded = b"".join(c.to_bytes(width, "little") for c in divide(x, zz) + divide(y, zzz))
    return np.frombuffer(encoded, np.uint8).reshape(1, -1)


class _Lists:
    """Indices of the dense scalars and of the ones, and how many there are."""

    def __init__(self, space: Workspace, n: int) -> None:
        self.counts = space.take(2 * _WORD)
        self.dense = space.take(_WORD * n)
        self.ones = space.take(_WORD * n)


class _SortBuffers:
    """Digits, then entries before and after the last pass, in two places in turn."""

    def __init__(self, space: Workspace, windows: Windows, dense: int) -> None:
        passes = windows.passes()
        self.tiles = _divide(dense, SORT_TILE)
        rows = windows.count << max(passes)
        self.counts = space.take(_WORD * rows * self.tiles)
        self.sums = space.take(_WORD * rows)
        self.starts = space.take(_WORD * (windows.count + 1))
        digits = windows.count * dense
        self.codes = space.take((_ENTRY if len(passes) > 1 else _WORD) * digits)
        self.entries = space.take(_ENTRY * digits)


class _AddBuffers:
    """Buckets, those of the ones behind them, heads of two rounds, sums of two steps."""

    def __init__(self, space: Workspace, windows: Windows, xyzz: int, blocks: int) -> None:
        heads = blocks * ADD_THREADS
        lengths = (heads, _divide(heads, FOLD_STEP))
        self.buckets = space.take(xyzz * (windows.count * windows.buckets + 1))
        self.heads = [space.take(xyzz * length) for length in lengths]
        self.head_buckets = [space.take(_WORD * length) for length in lengths]
        self.sums = [space.take(xyzz * length) for length in _sums_of_steps(windows)]


def _sums_of_steps(windows: Windows) -> tuple[int, int]:
    """The most points that even and odd steps of the reduction leave."""
    lengths = [0, 0]
    size = windows.buckets
    for k, step in enumerate(windows.steps()):
        size >>= step
        lengths[k % 2] = max(lengths[k % 2], (k + 2) * windows.count * size)
    return lengths[0], lengths[1]


def _sort_codes(
    kernels: Kernels, windows: Windows, dense: int, indices: Any, buffers: _SortBuffers
) -> Any:
    digits = (buffers.codes, indices, np.uint32(dense), np.uint32(windows.buckets))
    shift = 0
    source, target = buffers.codes, buffers.entries
    arguments: tuple[Any, ...]
    for number, bits in enumerate(windows.passes()):
        if number == 0:
            kind, arguments = "codes", (*digits, np.int32(bits))
        else:
            kind = "entries"
            arguments = (source, buffers.starts, np.int32(shift), np.int32(bits))
        _sort_pass(kernels, windows, bits, buffers, kind, arguments, target)
        source, target = target, source
        shift += bits
    return source


def _sort_pass(
    kernels: Kernels,
    windows: Windows,
    bits: int,
    buffers: _SortBuffers,
    kind: str,
    arguments: tuple[Any, ...],
    target: Any,
) -> None:
    tiles = np.uint32(buffers.tiles)
    blocks = windows.count * buffers.tiles
    rows = windows.count << bits
    row_blocks = _divide(rows * 32, SORT_THREADS)
    counts, sums = buffers.counts, buffers.sums
    kernels.launch(f"count_{kind}", blocks, SORT_THREADS, *arguments, tiles, counts)
    kernels.launch("sum_count_rows", row_blocks, SORT_THREADS, counts, np.uint32(rows), tiles, sums)
    kernels.launch(
        "scan_row_sums",
        1,
        SCAN_THREADS,
        *(sums, np.uint32(1 << bits), np.uint32(windows.count), buffers.starts),
    )
    kernels.launch(
        "scan_count_rows", row_blocks, SORT_THREADS, counts, np.uint32(rows), tiles, sums
    )
    kernels.launch(f"scatter_{kind}", blocks, SORT_THREADS, *arguments, tiles, counts, target)


def _fold(kernels: Kernels, buffers: _AddBuffers, count: int) -> None:
    now = 0
    while count > 1:
        left = _divide(count, FOLD_STEP)
        kernels.launch(
            "fold_heads",
            _divide(left, ADD_THREADS),
            ADD_THREADS,
            *(buffers.heads[now], buffers.head_buckets[now], np.uint32(count), buffers.buckets),
            *(buffers.heads[1 - now], buffers.head_buckets[1 - now]),
        )
        now, count = 1 - now, left


def _reduce(kernels: Kernels, windows: Windows, buffers: _AddBuffers, sums: Any) -> None:
    source, size = buffers.buckets, windows.buckets
    count = np.uint32(windows.count)
    steps = windows.steps()
    for k, step in enumerate(steps):
        target = buffers.sums[k % 2]
        threads = (k + 1) * windows.count * (size >> step)
        kernels.launch(
            "reduce_buckets",
            _divide(threads, ADD_THREADS),
            ADD_THREADS,
            *(source, np.uint32(k + 1), count, np.uint32(size), np.uint32(step), target),
        )
        source, size = target, size >> step
    rest = steps[-1]
    kernels.launch(
        "sum_windows",
        windows.count,
        TEAM,
        *(source, np.uint32(len(steps)), np.uint32(steps[0]), np.uint32(rest), sums),
    )


@cache
def _most_windows(curve: Curve) -> int:
    return max(windows.count for windows in possible(curve.r.bit_length()))


def _blocks(kernels: Kernels, entries: int) -> int:
    """Blocks that add up so many points, or fewer."""
    resident = kernels.resident_blocks("accumulate_runs", ADD_THREADS)
    return min(resident * WAVES, max(1, _divide(entries, ADD_THREADS * SHORTEST_PART)))


def _divide(a: int, b: int) -> int:
    return -(-a // b)
