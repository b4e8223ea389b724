"""A stand-in for CuPy over a driver without a GPU."""

import contextlib
from types import ModuleType, SimpleNamespace

import numpy as np

from bigmem.cuda.pinned import is_pinned


class OnDevice(np.ndarray):
    """Memory of the fake device, which is the host's; `set` is the driver's copy.

    A pageable one is over at once. What is pinned is read when the stream comes to it.
    """

    @property
    def __cuda_array_interface__(self):
        address, version = (self.ctypes.data, False), {"version": 3}
        return {**self.__array_interface__, "data": address, **version}

    def set(self, source):
        if is_pinned(source, 0):
            Stream.current.copies.append((self, source))
            return
        stand_in_for_cupy.pageable_copies += 1
        self[...] = source


class Stream:
    """A stream of the fake device."""

    current = None

    def __init__(self, non_blocking=False):
        self.ptr = stand_in_for_cupy.fake.stream(blocking=not non_blocking)
        self.copies = []

    def __enter__(self):
        self.outer, Stream.current = Stream.current, self

    def __exit__(self, *raised):
        Stream.current = self.outer

    def synchronize(self):
        stand_in_for_cupy.fake.finish(self.ptr)
        for target, source in self.copies:
            target[...] = source
        self.copies.clear()


# The memory stays, as that of a pool does: copies to it may be still to happen.
stand_in_for_cupy = SimpleNamespace(fake=None, pageable_copies=0, memory=[])


def empty(shape, dtype):
    array = np.zeros(shape, dtype).view(OnDevice)  # not what another test has left there
    stand_in_for_cupy.memory.append(array)
    return array


def make_cupy():
    cupy = ModuleType("cupy")
    cupy.empty = empty
    cupy.cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDeviceCount=lambda: 1),
        nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
        Device=lambda number: SimpleCard(),
        Stream=Stream,
        MemoryPool=Pool,
        using_allocator=lambda allocator: contextlib.nullcontext(),
        get_current_stream=lambda: Stream.current,
    )
    return cupy


class Pool:
    """Notes its limit, of which 0 is none."""

    malloc = None
    total = used = 0

    def set_limit(self, size):
        self.limit = size

    def total_bytes(self):
        return self.total

    def used_bytes(self):
        return self.used


class SimpleCard(contextlib.nullcontext):
    mem_info = (1 << 30, 1 << 30)
