"""The device's kernels, compiled for the host and run by emulator.hpp."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "prover" / "kernels"
CLASSES = {"bn128": "Bn128", "bls12381": "Bls12381"}
GROUPS = [(curve, group) for curve in CLASSES for group in (1, 2)]


def build(folder: Path) -> dict[tuple[str, int], EmulatedKernels]:
    """One library a group, compiled side by side."""
    libraries = {key: folder / f"{key[0]}_g{key[1]}.so" for key in GROUPS}
    compilers = [subprocess.Popen(command(*key, path)) for key, path in libraries.items()]
    assert [compiler.wait() for compiler in compilers] == [0] * len(GROUPS)
    return {key: EmulatedKernels(path) for key, path in libraries.items()}


def command(curve: str, group: int, library: Path) -> list[str]:
    options = [
        "-std=c++17",
        "-O2",
        "-fno-strict-aliasing",
        "-U_FORTIFY_SOURCE",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
    ]
    macros = {
        "CURVE_HEADER": f'"{curve}.cuh"',
        "CURVE_CLASS": CLASSES[curve],
        "FIELD": "Fq" if group == 1 else "Fq2",
    }
    return [
        os.environ.get("CXX", "c++"),
        *options,
        f"-I{KERNELS}",
        *(f"-D{name}={value}" for name, value in macros.items()),
        str(HERE / "emulated_msm.cpp"),
        "-o",
        str(library),
    ]


class EmulatedKernels:
    """`prover.backends.cuda.msm.Kernels` on NumPy arrays."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.last_error.restype = ctypes.c_char_p

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        words = [a.ctypes.data if isinstance(a, np.ndarray) else int(a) for a in arguments]
        array = (ctypes.c_uint64 * len(words))(*words)
        if self._library.launch_kernel(name.encode(), blocks, threads, array) != 0:
            raise RuntimeError(self._library.last_error().decode())

    def resident_blocks(self, name: str, threads: int) -> int:
        return 1

    def to_host(self, data: np.ndarray) -> np.ndarray:
        return data.copy()


def aligned(data: np.ndarray) -> np.ndarray:
    """A copy that can be read 16 bytes at a time."""
    room = np.empty(data.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    view = room[start : start + data.nbytes].reshape(data.shape)
    view[...] = data
    return view
