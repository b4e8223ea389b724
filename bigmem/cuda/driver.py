"""CUDA's driver, found through NVIDIA's cuda-bindings."""

import resource
from dataclasses import dataclass

from .. import _core
from ..errors import BigmemError


@dataclass(frozen=True, slots=True)
class Cuda:
    """The driver of the process, and what is known of its GPUs' work."""

    driver: _core.CudaDriver
    fences: _core.CudaFences
    devices: int


_loaded: Cuda | None = None


def loaded() -> Cuda:
    """The driver, initialized at the first call; it makes no context.

    Raises
    ------
    BigmemError
        Something is missing; the message says what.
    """
    global _loaded
    if _loaded is None:
        driver = _core.CudaDriver(_addresses())
        try:
            devices = driver.start()
        except BigmemError as error:
            raise BigmemError(f"NVIDIA's driver does not start ({error})") from None
        if not devices:
            raise BigmemError("NVIDIA's driver shows no GPU to this process")
        made = Cuda(driver, _core.CudaFences(driver), devices)
        # Of several threads that come here at once the first one's stays: an allocator goes by the
        # fences that record() attaches.
        if _loaded is None:
            _loaded = made
    return _loaded


def refuse_after_fork() -> None:
    """Raise where a parent of this process had loaded the driver, which ends it for this one."""
    if _loaded is not None and not _loaded.driver.usable():
        raise BigmemError(
            "a process forked from one that uses CUDA cannot use it: start workers by spawn or "
            "forkserver, or fork before the first PinnedAllocator"
        )


def explain(failure: tuple[str, int]) -> str:
    """What CUDA refused, and what could be done about it.

    Parameters
    ----------
    failure
        The function and its result.
    """
    function, result = failure
    text = f"{function}: {loaded().driver.error_name(result)}"
    remedy = _remedy(function, result)
    return f"{text}; {remedy}" if remedy else text


_ALREADY_REGISTERED, _NOT_PERMITTED = 712, 800
# That stream 0 is the legacy default one.
_LEGACY_STREAM = 1


def _remedy(function: str, result: int) -> str | None:
    if result == _ALREADY_REGISTERED:
        return (
            "memory at this address was registered by somebody who unmapped it without "
            "cudaHostUnregister: unregister before freeing"
        )
    if function == "cuMemHostRegister":
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if limit != resource.RLIM_INFINITY:
            return (
                f"this process may lock {limit} bytes of memory: raise that "
                "(ulimit -l, or memlock in /etc/security/limits.conf)"
            )
    if result == _NOT_PERMITTED:
        return "a function that CUDA calls when a stream gets there may not call CUDA"
    return None


def _addresses() -> dict[str, int]:
    """Where the driver's functions are, by name; tests put other functions in their place."""
    try:
        from cuda.bindings import driver as bindings
    except ImportError:
        raise BigmemError(
            "pinned memory needs the package cuda-bindings: pip install 'bigmem[cuda13]', "
            "or bigmem[cuda12]"
        ) from None
    found: dict[str, int] = {}
    try:
        for name, version in _core.cuda_functions():
            error, address, _ = bindings.cuGetProcAddress(name.encode(), version, _LEGACY_STREAM)
            if int(error) == 0 and address:
                found[name] = int(address)
    except RuntimeError as error:
        raise BigmemError(f"NVIDIA's driver is missing here ({error})") from None
    return found
