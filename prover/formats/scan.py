"""Passes over the values of a mapped section in pieces, so that memory stays bounded."""

from collections.abc import Iterator

import numpy as np

from prover.curves import CURVES, SCALAR_BYTES, Curve
from prover.errors import MalformedFile, UnsupportedFile
from prover.formats.container import Bytes, Container

PIECE_BYTES = 32 << 20
"""Bytes of a section that are looked at, and resident, at a time; threads are made for each."""


def pieces(container: Container, rows: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Yield (index of the first row, some rows), giving the pages back after each piece."""
    step = max(1, PIECE_BYTES // rows.shape[1])
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        yield start, piece
        container.drop(piece)


def off_curve(curve: Curve, group: int) -> str:
    """What is wrong with such a point, for an error."""
    return f"is not a point of {curve.title} G{group}"


def outside_subgroup(curve: Curve, group: int) -> str:
    """What is wrong with such a point, for an error."""
    return f"is outside the subgroup of order r of {curve.title} G{group}"


def check_points(
    container: Container, curve: Curve, group: int, rows: Bytes, what: str, threads: int = 0
) -> None:
    """Refuse points with a coordinate >= q or off the curve.

    Parameters
    ----------
    rows
        Affine points in Montgomery form, shape (n, bytes of a point); infinity is allowed.
    what
        What a point is, for the error; ``{}`` in it becomes the point's number.

    Raises
    ------
    MalformedFile
    """
    from prover.backends.cpu import _cpu

    for start, piece in pieces(container, rows):
        bad = _cpu.find_off_curve(curve.name, group, piece, threads)
        if bad >= 0:
            raise MalformedFile(
                container.path,
                f"{what.format(start + bad)} {off_curve(curve, group)}",
            )


def check_subgroup(
    container: Container, curve: Curve, group: int, rows: Bytes, what: str, threads: int = 0
) -> None:
    """Refuse points, known to be on the curve, outside the subgroup of order r.

    Raises
    ------
    MalformedFile
    """
    from prover.backends.cpu import _cpu

    for start, piece in pieces(container, rows):
        bad = _cpu.find_outside_subgroup(curve.name, group, piece, threads)
        if bad >= 0:
            raise MalformedFile(
                container.path,
                f"{what.format(start + bad)} {outside_subgroup(curve, group)}",
            )


def check_scalars(
    container: Container, curve: Curve, values: Bytes, first: int, what: str, threads: int = 0
) -> None:
    """Refuse scalars that are not below r; row 0 of ``values`` is called number ``first``.

    Raises
    ------
    MalformedFile
    """
    from prover.backends.cpu import _cpu

    bad = _cpu.find_not_below_order(curve.name, np.ascontiguousarray(values), threads)
    if bad >= 0:
        raise MalformedFile(
            container.path, f"{what.format(first + bad)} is not below the order r of {curve.title}"
        )


def scalar_curve(container: Container, scalar_bytes: int, order: int) -> Curve:
    """The curve whose scalar field a file names by the size and value of its prime.

    Raises
    ------
    UnsupportedFile
    """
    for curve in CURVES.values():
        if scalar_bytes == SCALAR_BYTES and order == curve.r:
            return curve
    raise UnsupportedFile(
        container.path,
        f"is over a field of order {order:#x}, neither BN254's (bn128) nor BLS12-381's (bls12381)",
    )
