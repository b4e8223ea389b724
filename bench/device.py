"""The GPU as benches and tests use it: the driver's library, some kernels, a watch on launches.

It needs NVIDIA's driver and nothing else, so that each contender of a bench can be alone in its
process with it. The watch is a native thread (`launches.cpp`): Python's lock is no part of what it
sees.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bench.timing import percentile

_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing() { ret; }
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .u64 %limit, %start, %now;
    .reg .pred %early;
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %start, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, %limit;
    @%early bra again;
    ret;
}
.visible .entry fault()
{
    .reg .u64 %nowhere;
    .reg .u32 %one;
    mov.u64 %nowhere, 64;
    mov.u32 %one, 1;
    st.global.u32 [%nowhere], %one;
    ret;
}
"""

_INT, _UNSIGNED, _SIZE = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_HANDLE, _ADDRESS = ctypes.c_void_p, ctypes.c_uint64

# What the library's functions take; all return an error code.
_PARAMETERS: dict[str, tuple[type, ...]] = {
    "cuInit": (_UNSIGNED,),
    "cuDeviceGet": (_HANDLE, _INT),
    "cuDeviceGetName": (ctypes.c_char_p, _INT, _INT),
    "cuDeviceGetAttribute": (_HANDLE, _INT, _INT),
    "cuDriverGetVersion": (_HANDLE,),
    "cuDevicePrimaryCtxRetain": (_HANDLE, _INT),
    "cuDevicePrimaryCtxReset_v2": (_INT,),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuCtxSynchronize": (),
    "cuModuleLoadData": (_HANDLE, ctypes.c_char_p),
    "cuModuleGetFunction": (_HANDLE, _HANDLE, ctypes.c_char_p),
    "cuLaunchKernel": (_HANDLE, *[_UNSIGNED] * 7, _HANDLE, _HANDLE, _HANDLE),
    "cuStreamCreate": (_HANDLE, _UNSIGNED),
    "cuStreamQuery": (_HANDLE,),
    "cuStreamSynchronize": (_HANDLE,),
    "cuMemAlloc_v2": (_HANDLE, _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemHostAlloc": (_HANDLE, _SIZE, _UNSIGNED),
    "cuMemFreeHost": (_ADDRESS,),
    "cuMemHostRegister_v2": (_ADDRESS, _SIZE, _UNSIGNED),
    "cuMemcpyHtoD_v2": (_ADDRESS, _ADDRESS, _SIZE),
    "cuMemcpyDtoH_v2": (_ADDRESS, _ADDRESS, _SIZE),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _HANDLE),
    "cuMemcpyDtoHAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _HANDLE),
    "cuMemsetD8Async": (_ADDRESS, ctypes.c_ubyte, _SIZE, _HANDLE),
    "cuMemPoolCreate": (_HANDLE, _HANDLE),
    "cuMemPoolSetAccess": (_HANDLE, _HANDLE, _SIZE),
    "cuMemPoolSetAttribute": (_HANDLE, _INT, _HANDLE),
    "cuMemPoolTrimTo": (_HANDLE, _SIZE),
    "cuMemAllocFromPoolAsync": (_HANDLE, _SIZE, _HANDLE, _HANDLE),
    "cuMemFreeAsync": (_ADDRESS, _HANDLE),
    "cuLaunchHostFunc": (_HANDLE, _HANDLE, _HANDLE),
    "cuStreamBeginCapture_v2": (_HANDLE, _INT),
    "cuStreamEndCapture": (_HANDLE, _HANDLE),
    "cuGetErrorName": (_INT, _HANDLE),
}
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NOT_READY = 600
_NON_BLOCKING = 1


class CudaError(RuntimeError):
    """What the driver answered, and to what."""


@dataclass(frozen=True)
class Launches:
    """How long launches held their thread, in milliseconds."""

    count: int
    p99: float
    worst: float

    @classmethod
    def of(cls, seconds: list[float]) -> Launches:
        """Sum them up."""
        if not seconds:
            return cls(0, 0.0, 0.0)
        return cls(len(seconds), percentile(seconds, 99) * 1e3, max(seconds) * 1e3)


class Gpu:
    """A device's primary context, current on the thread that makes it, and the kernels loaded.

    Parameters
    ----------
    device
        Its ordinal.

    Raises
    ------
    OSError
        There is no driver.
    CudaError
        It refuses; there may be no device.
    """

    def __init__(self, device: int = 0) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = device
        number = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(number), device)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number.value)
        self.context = context.value or 0
        self.enter()
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._kernels = {
            name: self._function(module, name) for name in ("nothing", "spin", "fault")
        }
        # The first launch of each loads it, which would stall what is measured later.
        stream = self.stream()
        self.launch_nothing(stream)
        self.spin(0.001, stream)
        self.synchronize(stream)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the library; arguments as its C parameters, handles as integers.

        Raises
        ------
        CudaError
            It answers with an error.
        """
        code = self.answer(name, *arguments)
        if code:
            raise CudaError(f"{name}: {self.error_name(code)}")

    def answer(self, name: str, *arguments: object) -> int:
        """The same, for its error code."""
        function = getattr(self._library, name)
        function.argtypes = _PARAMETERS[name]
        return int(function(*arguments))

    def error_name(self, code: int) -> str:
        """The driver's name of an error code."""
        text = ctypes.c_char_p()
        self.answer("cuGetErrorName", code, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {code}"

    def enter(self) -> None:
        """Make the context current on this thread."""
        self.call("cuCtxSetCurrent", self.context)

    def _function(self, module: ctypes.c_void_p, name: str) -> int:
        found = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
        return found.value or 0

    def _made(self, name: str, *arguments: object) -> int:
        """What a function writes to its first parameter."""
        made = ctypes.c_uint64()
        self.call(name, ctypes.byref(made), *arguments)
        return made.value

    def reset(self) -> None:
        """Destroy the context and all that is in it (``cudaDeviceReset``)."""
        self.call("cuDevicePrimaryCtxReset_v2", self.device)

    def name(self) -> str:
        """What the device is called."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, 256, self.device)
        return text.value.decode()

    def driver_version(self) -> str:
        """The newest CUDA that the driver serves."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def stream(self, *, blocking: bool = False) -> int:
        """A new stream; one that is blocking waits for the legacy default stream."""
        return self._made("cuStreamCreate", 0 if blocking else _NON_BLOCKING)

    def spin(self, milliseconds: float, stream: int) -> None:
        """Launch a kernel of one thread that runs so long."""
        limit = ctypes.c_uint64(int(milliseconds * 1e6))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(limit))
        self._launch("spin", stream, parameters)

    def launch_nothing(self, stream: int) -> None:
        """Launch a kernel that does nothing."""
        self._launch("nothing", stream)

    def fault(self, stream: int) -> None:
        """Launch a kernel that writes where nothing is: the context is lost once it has run."""
        self._launch("fault", stream)

    def _launch(self, name: str, stream: int, parameters: object = None) -> None:
        one_thread = [1] * 6
        kernel = self._kernels[name]
        self.call("cuLaunchKernel", kernel, *one_thread, 0, stream, parameters, None)

    def begin_capture(self, stream: int, mode: int) -> None:
        """Record what is submitted to the stream instead of doing it; 0 is global, 2 relaxed."""
        self.call("cuStreamBeginCapture_v2", stream, mode)

    def end_capture(self, stream: int) -> int:
        """The graph of what was recorded.

        Raises
        ------
        CudaError
            Something has invalidated the capture.
        """
        graph = ctypes.c_void_p()
        self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        return graph.value or 0

    def call_back(self, stream: int, action: Callable[[], None]) -> object:
        """Have the stream call on a thread of the driver's; keep what is returned until it has."""
        function = _CALLBACK(lambda _: action())
        self.call("cuLaunchHostFunc", stream, ctypes.cast(function, ctypes.c_void_p), None)
        return function

    def idle(self, stream: int) -> bool:
        """Whether all work of a stream is done."""
        code = self.answer("cuStreamQuery", stream)
        if code not in (0, _NOT_READY):
            raise CudaError(f"cuStreamQuery: {self.error_name(code)}")
        return code == 0

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for a stream, or for the whole context."""
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", stream)

    @contextmanager
    def memory(self, nbytes: int) -> Iterator[int]:
        """Memory of the device, by address."""
        address = self._made("cuMemAlloc_v2", nbytes)
        try:
            yield address
        finally:
            self.call("cuMemFree_v2", address)

    def to_device(self, device: int, host: int, nbytes: int, stream: int) -> None:
        """Copy, in the stream's order."""
        self.call("cuMemcpyHtoDAsync_v2", device, host, nbytes, stream)

    def to_host(self, host: int, device: int, nbytes: int, stream: int) -> None:
        """Copy, in the stream's order."""
        self.call("cuMemcpyDtoHAsync_v2", host, device, nbytes, stream)

    def fill(self, device: int, value: int, nbytes: int, stream: int) -> None:
        """Fill memory of the device, in the stream's order."""
        self.call("cuMemsetD8Async", device, value, nbytes, stream)

    def host_alloc(self, nbytes: int) -> int:
        """Pinned memory as the driver itself gives it (``cudaHostAlloc``)."""
        return self._made("cuMemHostAlloc", nbytes, 0)

    def host_free(self, address: int) -> None:
        """Give it back (``cudaFreeHost``)."""
        self.call("cuMemFreeHost", address)

    def speed(self, copy: Callable[..., None], to: int, source: int, nbytes: int) -> float:
        """GiB/s of `to_device` or `to_host`: the best of four copies, the first not counted."""
        stream = self.stream()
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            copy(to, source, nbytes, stream)
            self.synchronize(stream)
            seconds.append(time.perf_counter() - start)
        return nbytes / (1 << 30) / min(seconds[1:])

    def watch(self, pause: float = 50e-6) -> Watch:
        """A watch on launches, to be entered."""
        return Watch(self, pause)


class Watch:
    """Launches an empty kernel from a native thread for as long as it is entered.

    `launches` then holds what they took. Entering returns once the thread is at it.
    """

    def __init__(self, gpu: Gpu, pause: float) -> None:
        self.launches = Launches(0, 0.0, 0.0)
        self._gpu = gpu
        self._pause = int(pause * 1e6)
        self._native = _native_watch()

    def __enter__(self) -> Watch:
        gpu, library = self._gpu, self._gpu._library
        self._handle = self._native.watch_start(
            ctypes.cast(library.cuLaunchKernel, ctypes.c_void_p),
            ctypes.cast(library.cuCtxSetCurrent, ctypes.c_void_p),
            gpu.context,
            gpu._kernels["nothing"],
            gpu.stream(),
            self._pause,
        )
        end = time.monotonic() + 5
        while self._native.watch_made(self._handle) < 20 and time.monotonic() < end:
            time.sleep(0.001)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        room = 1 << 20
        seconds, code = (ctypes.c_double * room)(), ctypes.c_int()
        count = self._native.watch_stop(self._handle, seconds, room, ctypes.byref(code))
        # The first ones are the thread's start.
        self.launches = Launches.of(seconds[5:count])
        if code.value and error is None:
            raise CudaError(f"a launch of the watch failed: {self._gpu.error_name(code.value)}")


@functools.cache
def _native_watch() -> ctypes.CDLL:
    """The watch, compiled."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        raise RuntimeError("the watch on launches needs a C++ compiler, and there is none")
    folder = tempfile.mkdtemp(prefix="bigmem-launches-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    output = Path(folder) / "launches.so"
    command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-pthread"]
    source = Path(__file__).with_name("launches.cpp")
    subprocess.run([*command, str(source), "-o", str(output)], check=True)
    library = ctypes.CDLL(str(output))
    library.watch_start.argtypes = [*[_HANDLE] * 5, _UNSIGNED]
    library.watch_start.restype = _HANDLE
    library.watch_made.argtypes = [_HANDLE]
    library.watch_made.restype = _SIZE
    library.watch_stop.argtypes = [_HANDLE, _HANDLE, _SIZE, _HANDLE]
    library.watch_stop.restype = _SIZE
    return library


def device_count() -> int:
    """How many GPUs the driver shows to this process."""
    library = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def available() -> int:
    """Bytes that the machine could still give (MemAvailable)."""
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable:")


def resident() -> int:
    """Bytes of this process in memory, of the driver's mappings too (VmRSS)."""
    return _kilobytes(Path("/proc/self/status"), "VmRSS:")


def _kilobytes(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
