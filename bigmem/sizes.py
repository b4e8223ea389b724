"""Sizes as people write them."""

import operator
import re
from typing import SupportsIndex

from .errors import BigmemError

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(size: SupportsIndex | str) -> int:
    """Bytes named by an integer or by a string such as ``"64MiB"`` or ``"1.5 GB"``.

    Raises
    ------
    BigmemError
        The string is no size, or the number is negative.
    TypeError
        Neither an integer nor a string.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None or match[2].lower() not in _UNITS:
            raise BigmemError(f"{size!r} is no size; write bytes or, for example, '64MiB'")
        number, unit = match.groups()
        scale = _UNITS[unit.lower()]
        try:
            return int(number) * scale if number.isdigit() else round(float(number) * scale)
        except (OverflowError, ValueError):  # Python has limits, too
            raise BigmemError(f"{size[:20]!r}... is no size: it has too many digits") from None
    nbytes = operator.index(size)
    if nbytes < 0:
        raise BigmemError(f"a size cannot be negative (got {nbytes})")
    return nbytes


def format_size(nbytes: int) -> str:
    """`nbytes` with the largest binary unit that it fills, for people."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} bytes"
