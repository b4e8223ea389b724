"""Cutting buffers from one array of bytes."""

from typing import Any

_ALIGNMENT = 256


class Workspace:
    """Takes buffers one after another from an array of bytes, or only counts them.

    Parameters
    ----------
    data
        One-dimensional ``uint8`` array (NumPy's or CuPy's), or None to count.
    """

    def __init__(self, data: Any = None) -> None:
        self._data = data
        self.used = 0

    def take(self, nbytes: int) -> Any:
        """The next ``nbytes``; None when only counting.

        Raises
        ------
        ValueError
            If the array is too short.
        """
        begin = self.used
        self.used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if self._data is None:
            return None
        if self.used > self._data.size:
            raise ValueError(f"the workspace holds {self._data.size} bytes, not {self.used}")
        return self._data[begin : begin + nbytes]
