"""Who is compared in `bench.pinned`: everyone's pinned memory behind the same few calls.

Addresses stand for blocks, so that nobody's objects are kept alive by the bench.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

from bench.device import Gpu


class Contender(ABC):
    """Pinned memory of one kind.

    Attributes
    ----------
    keeps
        Whether freed memory is kept for the next allocation.
    tells
        How it learns of a copy that reads a block, in words; `None` if it cannot.
    """

    keeps = True
    tells: str | None = None

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.held: dict[int, Any] = {}

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """The address of a new block."""

    def free(self, address: int) -> None:
        """Let a block go, as a program would."""
        del self.held[address]

    def give_back(self) -> None:  # noqa: B027 - some have no way
        """Hand all that is idle to the system."""

    def copy_told(self, device: int, address: int, nbytes: int, stream: int) -> int:
        """Copy a block to the GPU in a way that it learns of; the address on the device."""
        self.gpu.to_device(device, address, nbytes, stream)
        return device

    def note(self) -> str:
        """What a reader should know of it: its version, or how it was set up."""
        return ""


class Ours(Contender):
    """`bigmem.cuda.PinnedAllocator`."""

    tells = "bigmem.cuda.record"

    def __init__(self, gpu: Gpu, mechanism: Literal["vmm", "register", "alloc"]) -> None:
        super().__init__(gpu)
        from bigmem import cuda

        self.cuda = cuda
        self.keeps = mechanism == "vmm"
        self.allocator = cuda.PinnedAllocator(mechanism=mechanism)

    def allocate(self, nbytes: int) -> int:
        block = self.allocator.allocate(nbytes)
        self.held[block.address] = block
        return block.address

    def give_back(self) -> None:
        self.allocator.trim()

    def copy_told(self, device: int, address: int, nbytes: int, stream: int) -> int:
        super().copy_told(device, address, nbytes, stream)
        self.cuda.record(self.held[address], stream)
        return device

    def note(self) -> str:
        allocator = self.allocator
        return f"stalls of the mechanism: {allocator.stalls}, {allocator.stall_seconds:.3f} s"


class HostAlloc(Contender):
    """The driver's own calls, without a pool."""

    keeps = False
    tells = None

    def allocate(self, nbytes: int) -> int:
        address = self.gpu.host_alloc(nbytes)
        self.held[address] = address
        return address

    def free(self, address: int) -> None:
        super().free(address)
        self.gpu.host_free(address)


class CupyPool(Contender):
    """`cupy.cuda.PinnedMemoryPool`."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        import cupy

        cupy.cuda.Device(gpu.device).use()
        self.pool = cupy.cuda.PinnedMemoryPool()

    def allocate(self, nbytes: int) -> int:
        pointer = self.pool.malloc(nbytes)
        self.held[pointer.ptr] = pointer
        return int(pointer.ptr)

    def give_back(self) -> None:
        self.pool.free_all_blocks()

    def note(self) -> str:
        return _version("cupy-cuda13x", "cupy-cuda12x")


class Torch(Contender):
    """PyTorch's cache behind ``pin_memory=True``."""

    tells = "Tensor.copy_(non_blocking=True)"

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        import torch

        self.torch: Any = torch
        torch.cuda.init()

    def allocate(self, nbytes: int) -> int:
        tensor = self.torch.empty(nbytes, dtype=self.torch.uint8, pin_memory=True)
        self.held[tensor.data_ptr()] = tensor
        return int(tensor.data_ptr())

    def give_back(self) -> None:
        self.torch._C._host_emptyCache()

    def copy_told(self, device: int, address: int, nbytes: int, stream: int) -> int:
        self.target = self.torch.empty(nbytes, dtype=self.torch.uint8, device="cuda")
        with self.torch.cuda.stream(self.torch.cuda.ExternalStream(stream)):
            self.target.copy_(self.held[address], non_blocking=True)
        return int(self.target.data_ptr())

    def note(self) -> str:
        return f"torch {self.torch.__version__}"


class Rmm(Contender):
    """RMM's pool over its pinned memory: ordered by the streams that free and allocate name."""

    tells = "deallocate(stream)"

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        import rmm
        from rmm.pylibrmm.stream import Stream

        class Named:
            """A stream of the driver's, as RMM accepts it."""

            def __init__(self, handle: int) -> None:
                self.handle = handle

            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, self.handle

        # Growing from nothing: its own default is half of the GPU's memory.
        self.pool = rmm.mr.PoolMemoryResource(
            rmm.mr.PinnedHostMemoryResource(), initial_pool_size=1 << 20
        )
        self.stream_of: Callable[[int], Any] = lambda handle: Stream(Named(handle))
        self.own = gpu.stream()
        self.used_by: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        address = int(self.pool.allocate(nbytes, self.stream_of(self.own)))
        self.gpu.synchronize(self.own)  # the block is the host's from here on
        self.held[address] = nbytes
        return address

    def free(self, address: int) -> None:
        stream = self.used_by.pop(address, self.own)
        self.pool.deallocate(address, self.held.pop(address), self.stream_of(stream))

    def copy_told(self, device: int, address: int, nbytes: int, stream: int) -> int:
        self.used_by[address] = stream
        return super().copy_told(device, address, nbytes, stream)

    def note(self) -> str:
        return _version("rmm-cu13", "rmm-cu12") + ", gives nothing back"


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _PoolProperties(ctypes.Structure):
    _fields_ = (
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class HostPool(Contender):
    """A memory pool of the driver's on the host, ordered by streams (CUDA 12.2 and newer)."""

    tells = "cuMemFreeAsync(stream)"
    DEVICE, HOST_NUMA = 1, 3
    PINNED, READ_WRITE, RELEASE_THRESHOLD = 1, 3, 4
    ATTRIBUTE_HOST_NUMA_ID = 134

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        node = ctypes.c_int()
        gpu.call(
            "cuDeviceGetAttribute", ctypes.byref(node), self.ATTRIBUTE_HOST_NUMA_ID, gpu.device
        )
        properties = _PoolProperties(
            allocation_type=self.PINNED, location=_Location(self.HOST_NUMA, max(0, node.value))
        )
        made = ctypes.c_void_p()
        gpu.call("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(properties))
        self.pool = made.value
        everything = ctypes.c_uint64(2**64 - 1)
        gpu.call(
            "cuMemPoolSetAttribute", self.pool, self.RELEASE_THRESHOLD, ctypes.byref(everything)
        )
        access = _Access(_Location(self.DEVICE, gpu.device), self.READ_WRITE)
        gpu.call("cuMemPoolSetAccess", self.pool, ctypes.byref(access), 1)
        self.own = gpu.stream()
        self.used_by: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_uint64()
        self.gpu.call("cuMemAllocFromPoolAsync", ctypes.byref(address), nbytes, self.pool, self.own)
        self.gpu.synchronize(self.own)  # the block is the host's from here on
        self.held[address.value] = nbytes
        return address.value

    def free(self, address: int) -> None:
        super().free(address)
        self.gpu.call("cuMemFreeAsync", address, self.used_by.pop(address, self.own))

    def give_back(self) -> None:
        self.gpu.synchronize(self.own)
        self.gpu.call("cuMemPoolTrimTo", self.pool, 0)

    def copy_told(self, device: int, address: int, nbytes: int, stream: int) -> int:
        self.used_by[address] = stream
        return super().copy_told(device, address, nbytes, stream)

    def note(self) -> str:
        return f"release threshold unlimited, CUDA {self.gpu.driver_version()}"


def _version(*names: str) -> str:
    for name in names:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


CONTENDERS: dict[str, Callable[[Gpu], Contender]] = {
    "bigmem vmm": lambda gpu: Ours(gpu, "vmm"),
    "bigmem register": lambda gpu: Ours(gpu, "register"),
    "bigmem alloc": lambda gpu: Ours(gpu, "alloc"),
    "cudaHostAlloc": HostAlloc,
    "CuPy pool": CupyPool,
    "PyTorch cache": Torch,
    "RMM pool": Rmm,
    "CUDA host pool": HostPool,
}
"""By the name that the tables have, in their order."""
