"""Compiling kernels for a curve and starting them. Nothing but importing works without CuPy."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prover.curves import Curve
from prover.errors import UnavailableBackend, reason_of

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels"
CLASSES = {"bn128": "Bn128", "bls12381": "Bls12381"}
COORDINATES = {1: "Fq", 2: "Fq2"}

OPTIONS = ("--std=c++17", f"-I{KERNELS}")
"""For NVRTC; CuPy itself adds that functions are the device's by default."""

CPU_INSTEAD = "use --backend cpu"
"""How errors end that another backend does not have."""

_OUT_OF_MEMORY, _NOT_FOUND = 2, 500


def source_of(curve: str, path: Path, group: int | None = None) -> str:
    """The text of a program: a head that chooses the curve and the group, and a file of kernels.

    CuPy caches by this text and does not see the headers: their hash is a comment of it.
    """
    digest = hashlib.sha256()
    for header in sorted(KERNELS.glob("*.cuh")):
        digest.update(header.read_bytes())
    lines = [
        f"// {digest.hexdigest()}",
        f'#include "{curve}.cuh"',
        '#include "ptx.cuh"',
        f"using Curve = prover::{CLASSES[curve]}<prover::Ptx>;",
    ]
    if group is not None:
        lines.append(f"using F = Curve::{COORDINATES[group]};")
    return "\n".join(lines) + "\n" + path.read_text(encoding="utf-8")


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn what CUDA says when the driver itself finds no memory into MemoryError."""
    try:
        yield
    except RuntimeError as error:  # CuPy's errors are such, and carry CUDA's number
        if getattr(error, "status", None) == _OUT_OF_MEMORY:
            raise MemoryError(str(error)) from None
        raise


class Program:
    """The kernels of some files of one curve; see `prover.backends.cuda.msm.Kernels`."""

    def __init__(self, *modules: Any) -> None:
        import cupy

        self._modules = modules
        self._functions: dict[str, Any] = {}
        device = cupy.cuda.Device().attributes
        self._multiprocessors = device["MultiProcessorCount"]
        self._registers = device["MaxRegistersPerMultiprocessor"]
        self._threads = device["MaxThreadsPerMultiProcessor"]

    def function(self, name: str) -> Any:
        """The kernel of a name.

        Raises
        ------
        KeyError
            If there is none.
        """
        import cupy

        if name not in self._functions:
            for module in self._modules:
                try:
                    self._functions[name] = module.get_function(name)
                    break
                except cupy.cuda.driver.CUDADriverError as error:
                    # The driver loads a kernel when it is asked for, which takes memory, too.
                    if error.status != _NOT_FOUND:
                        raise
        return self._functions[name]

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        """Start a kernel on the current stream, if it has any blocks.

        Raises
        ------
        MemoryError
            If the driver itself lacks memory.
        """
        if blocks > 0:
            with memory_errors():
                self.function(name)((blocks,), (threads,), arguments)

    def resident_blocks(self, name: str, threads: int) -> int:
        """Blocks that the device holds at once, by registers and threads."""
        with memory_errors():
            registers = self.function(name).num_regs
        of_warp = -(-registers * 32 // 256) * 256
        warps = -(-threads // 32)
        by_registers = self._registers // (of_warp * warps)
        return int(self._multiprocessors * min(by_registers, self._threads // threads))

    def to_host(self, data: Any) -> NDArray[np.uint8]:
        """Wait for the current stream, and copy."""
        import cupy

        host: NDArray[np.uint8] = cupy.asnumpy(data)
        return host


_locks: defaultdict[tuple[object, ...], Lock] = defaultdict(Lock)


def compiled(curve: str, path: Path, group: int | None = None, device: int = 0) -> Any:
    """A module of kernels for the current device, whose number is ``device``.

    It comes from CuPy's cache on disk or is compiled now, which takes seconds; who wants it
    too waits meanwhile.

    Raises
    ------
    MemoryError
        If the driver lacks memory to load it.
    UnavailableBackend
        If it cannot be compiled for this GPU, or the folder of CuPy's cache cannot be written.
    """
    with _locks[curve, path, group]:
        return _module(curve, path, group, device)


@cache
def _module(curve: str, path: Path, group: int | None, device: int) -> Any:
    import cupy

    module = cupy.RawModule(code=source_of(curve, path, group), options=OPTIONS)
    try:
        with memory_errors():
            module.compile()
    except (RuntimeError, OSError, cupy.cuda.compiler.CompileException) as error:
        raise no_compiler(error) from None
    return module


def no_cupy(error: ImportError | OSError) -> UnavailableBackend:
    """What is told when CuPy cannot be imported. It makes the folder of its cache then."""
    return _unavailable(
        error,
        f"the cuda backend needs CuPy ({first_line(error)}); install bigmem[cuda12] or "
        f"bigmem[cuda13], or {CPU_INSTEAD}",
    )


def no_compiler(error: Exception) -> UnavailableBackend:
    """What is told when NVRTC, or the driver, gives this error instead of kernels.

    Or CuPy, where it cannot write what was compiled.
    """
    return _unavailable(
        error,
        f"the cuda backend's kernels cannot be compiled for this GPU ({first_line(error)}); "
        f"{CPU_INSTEAD}",
    )


def _unavailable(error: Exception, reason: str) -> UnavailableBackend:
    """For this reason, unless the error names a file: that is of CuPy's cache."""
    if isinstance(error, OSError) and error.filename is not None:
        reason = (
            f"compiled kernels cannot be kept ({error.filename}: {reason_of(error)}): set "
            f"CUPY_CACHE_DIR to a folder that can be written, or {CPU_INSTEAD}"
        )
    return UnavailableBackend(reason)


def first_line(error: Exception) -> str:
    """What CuPy says at length, in short."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def msm_program(curve: Curve, group: int) -> Program:
    """The kernels of `prover.backends.cuda.msm` for a group of a curve, on the current device."""
    import cupy

    device = cupy.cuda.Device().id
    files = (("sort.cu", None), ("msm.cu", group))
    return Program(*(compiled(curve.name, HERE / file, of, device) for file, of in files))
