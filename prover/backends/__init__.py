"""Backends: who does the arithmetic."""

from collections.abc import Callable

from prover.backends.base import Backend
from prover.errors import UnavailableBackend

BACKENDS = ("auto", "cpu", "cuda")
"""What `get_backend` takes."""

GPU_DOMAIN = 1 << 15
"""The least domain for which starting a GPU takes less time than it saves."""


def get_backend(
    name: str = "auto",
    *,
    threads: int = 0,
    domain: int = 0,
    device_memory: int | None = None,
    notify: Callable[[str], None] | None = None,
) -> Backend:
    """The backend of a name; ``"auto"`` is the fastest that this machine can run.

    Parameters
    ----------
    name
        One of `BACKENDS`.
    threads
        CPU threads, 0 for every core that the process may run on.
    domain
        The domain size of the circuit that will be proved; ``"auto"`` leaves small ones, and those
        of unknown size, to the CPU.
    device_memory
        Bytes of GPU memory to use at most; None for nearly all that is free.
    notify
        Told in a line when GPU kernels had to be compiled.

    Raises
    ------
    UnavailableBackend
    """
    if name not in BACKENDS:
        raise UnavailableBackend(f"there is no backend {name!r}; there are {', '.join(BACKENDS)}")
    if name == "cuda" or (name == "auto" and domain >= GPU_DOMAIN):
        from prover.backends.cuda.backend import CudaBackend
        from prover.backends.cuda.device import Device

        try:
            return CudaBackend(Device(device_memory, notify))
        except UnavailableBackend:
            if name == "cuda":
                raise
    from prover.backends.cpu.backend import CpuBackend

    return CpuBackend(threads)
