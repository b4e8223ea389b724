"""What the tests copy, and where to: the memory of a GPU that is none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

KIB, MIB = 1 << 10, 1 << 20
ILLEGAL_ADDRESS = 700
Array = np.ndarray[Any, Any]


# Memory of the device, which must be there until the last copy has been done.
on_device: list[Array] = []


class OnDevice:
    """An array as libraries show those of a GPU; the fake one has ordinary memory."""

    def __init__(self, like: Array, *, read_only: bool = False) -> None:
        self.array = np.zeros_like(like)
        on_device.append(self.array)
        self.interface = {**self.array.__array_interface__, "version": 3}
        self.interface["data"] = (self.array.ctypes.data, read_only)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface


class Tensor:
    """The part of a tensor that is looked at."""

    is_cuda = True

    def __init__(self, like: Array, *, contiguous: bool = True) -> None:
        self.array = np.zeros_like(like)
        self.contiguous = contiguous

    def is_contiguous(self) -> bool:
        return self.contiguous

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize


def numbers(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def threads_of_this_process() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def arrived(hosts: Sequence[Array], targets: Sequence[OnDevice]) -> bool:
    """Whether the device has every byte of each host array."""
    return all(
        np.array_equal(target.array, host) for target, host in zip(targets, hosts, strict=True)
    )
