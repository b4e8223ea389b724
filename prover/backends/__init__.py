"""Backends: who does the arithmetic."""

from collections.abc import Callable, Sequence

from prover.backends.base import Backend
from prover.errors import UnavailableBackend

BACKENDS = ("auto", "cpu", "cuda")
"""What `get_backend` takes."""

GPU_WORK = 1 << 17
"""Rows, of all proofs together, with which the second that a GPU takes to start is well spent."""

GPU_DOMAIN = 1 << 12
"""The least domain of which a running GPU makes proofs clearly faster."""


def get_backend(
    name: str = "auto",
    *,
    threads: int = 0,
    domain: int = 0,
    proofs: int = 1,
    device_memory: int | None = None,
    sharers: int = 1,
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
    proofs
        How many it will make: many small ones are worth a GPU, too.
    device_memory
        Bytes of GPU memory to use at most; None for nearly all that is free.
    sharers
        Among how many backends, this one included, that memory is divided.
    notify
        Told in lines when GPU kernels have to be compiled, and why ``"auto"`` leaves a large
        circuit to the CPU.

    Raises
    ------
    UnavailableBackend
    """
    if name not in BACKENDS:
        raise UnavailableBackend(f"there is no backend {name!r}; there are {', '.join(BACKENDS)}")
    large = domain >= GPU_DOMAIN and domain * proofs >= GPU_WORK
    if name == "cuda" or (name == "auto" and large):
        from prover.backends.cuda.backend import CudaBackend
        from prover.backends.cuda.device import Device

        try:
            device = Device(device_memory, notify, sharers=sharers)
            return CudaBackend(device, threads=threads)
        except UnavailableBackend as error:
            if name == "cuda":
                raise
            if notify is not None:
                notify(f"proving on the CPU: {error}")
    from prover.backends.cpu.backend import CpuBackend

    return CpuBackend(threads)


def get_cuda_backends(
    numbers: Sequence[int],
    *,
    threads: int = 0,
    device_memory: int | None = None,
    notify: Callable[[str], None] | None = None,
) -> list[Backend]:
    """A CUDA backend for each of these GPUs; those of one GPU divide its memory.

    Parameters are those of `get_backend`; ``device_memory`` is of each GPU.

    Raises
    ------
    UnavailableBackend
        Also if there is no GPU of one of the numbers.
    """
    from prover.backends.cuda.backend import CudaBackend
    from prover.backends.cuda.device import Device
    from prover.backends.cuda.program import CPU_INSTEAD

    try:
        return [
            CudaBackend(
                Device(device_memory, notify, number, numbers.count(number)), threads=threads
            )
            for number in numbers
        ]
    except UnavailableBackend as error:
        # Whoever names GPUs would be refused the CPU.
        raise UnavailableBackend(str(error).replace(CPU_INSTEAD, "leave out --devices")) from None
