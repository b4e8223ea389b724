"""Backends: who does the arithmetic."""

from prover.backends.base import Backend
from prover.errors import UnavailableBackend

BACKENDS = ("auto", "cpu", "cuda")
"""What `get_backend` takes."""


def get_backend(name: str = "auto", *, threads: int = 0) -> Backend:
    """The backend of a name; ``"auto"`` is the fastest that this machine can run.

    Parameters
    ----------
    name
        One of `BACKENDS`.
    threads
        CPU threads, 0 for every core that the process may run on.

    Raises
    ------
    UnavailableBackend
    """
    if name in ("auto", "cpu"):
        from prover.backends.cpu.backend import CpuBackend

        return CpuBackend(threads)
    if name == "cuda":
        raise UnavailableBackend("the cuda backend does not exist yet; use --backend cpu")
    raise UnavailableBackend(f"there is no backend {name!r}; there are {', '.join(BACKENDS)}")
