"""Files of kernels, compiled for a curve."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prover.curves import Curve

_HERE = Path(__file__).parent
KERNELS = _HERE.parents[1] / "kernels"
"""Where the headers are."""

OPTIONS = ("--std=c++17", f"-I{KERNELS}")

_CLASSES = {"bn128": "Bn128", "bls12381": "Bls12381"}
_OUT_OF_MEMORY = 2
_COORDINATES = {1: "Fq", 2: "Fq2"}


def source(curve: Curve, file: str, group: int | None = None, tail: str = "") -> str:
    """A file of kernels for a curve, and for the points of a group if it asks for them.

    CuPy looks its compiled programs up by this text alone, so it must change with every header.
    """
    digest = hashlib.sha256()
    for header in sorted(KERNELS.glob("*.cuh")):
        digest.update(header.read_bytes())
    lines = [
        f"// headers {digest.hexdigest()}",
        f'#include "{curve.name}.cuh"',
        '#include "ptx.cuh"',
        f"using Curve = prover::{_CLASSES[curve.name]}<prover::Ptx>;",
    ]
    if group is not None:
        lines.append(f"using F = Curve::{_COORDINATES[group]};")
    return "\n".join([*lines, (_HERE / file).read_text(encoding="utf-8"), tail])


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
    """The kernels of one file, on the current device and stream."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._kernels: dict[str, Any] = {}

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        """Start ``blocks`` blocks of a kernel, if any; arguments are arrays and NumPy scalars."""
        if blocks > 0:
            with memory_errors():
                self._kernel(name)((blocks,), (threads,), arguments)

    def resident_blocks(self, name: str, threads: int) -> int:
        """Blocks of a kernel that the device holds at once."""
        import cupy

        kernel = self._kernel(name).kernel
        occupancy = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
        count = cupy.cuda.Device().attributes["MultiProcessorCount"]
        return int(count * occupancy(kernel.ptr, threads, 0))

    def to_host(self, data: Any) -> NDArray[np.uint8]:
        """Wait for what was started, and copy."""
        import cupy

        host: NDArray[np.uint8] = cupy.asnumpy(data)
        return host

    def used(self) -> dict[str, Any]:
        """CuPy's kernels by name, of those that were launched."""
        return dict(self._kernels)

    def _kernel(self, name: str) -> Any:
        if name not in self._kernels:
            self._kernels[name] = self._module.get_function(name)
        return self._kernels[name]
