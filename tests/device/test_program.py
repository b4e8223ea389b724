"""Kernels that CuPy compiles and loads: what is told when that fails. CuPy itself is a stand-in."""

import errno
import sys
from types import SimpleNamespace

import pytest

from prover.backends.cuda import program
from prover.backends.cuda.program import Program
from prover.errors import UnavailableBackend

NOT_FOUND, OUT_OF_MEMORY, ILLEGAL_ADDRESS = 500, 2, 700


class DriverError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


class Module:
    """One that has the kernels of these names, or whose answer is always a status."""

    def __init__(self, *names, status=NOT_FOUND):
        self.names, self.status = names, status

    def get_function(self, name):
        if name not in self.names:
            raise DriverError(self.status)
        return SimpleNamespace(num_regs=64)


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    attributes = {
        "MultiProcessorCount": 10,
        "MaxRegistersPerMultiprocessor": 1 << 16,
        "MaxThreadsPerMultiProcessor": 2048,
    }
    device = SimpleNamespace(attributes=attributes)
    driver = SimpleNamespace(CUDADriverError=DriverError)
    made = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device, driver=driver))
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


def test_a_kernel_is_in_any_of_the_files():
    found = Program(Module("a"), Module("b"))
    # 64 registers a thread, 128 threads: eight blocks a multiprocessor.
    assert [found.resident_blocks(name, 128) for name in "ab"] == [80, 80]
    assert list(found.used()) == ["a", "b"]
    with pytest.raises(KeyError):
        found.function("c")


def test_a_driver_without_memory_to_load_a_kernel():
    """Kernels are loaded when they are asked for."""
    full = Program(Module(), Module("a", status=OUT_OF_MEMORY), Module(status=OUT_OF_MEMORY))
    for use in (lambda: full.launch("b", 1, 128), lambda: full.resident_blocks("b", 128)):
        with pytest.raises(MemoryError, match="status 2"):
            use()


def test_a_context_that_is_lost_is_not_a_kernel_that_is_missing():
    with pytest.raises(DriverError, match="status 700"):
        Program(Module(status=ILLEGAL_ADDRESS)).function("a")


def test_a_cache_that_cannot_be_written_is_told(cupy, monkeypatch):
    def refuse():
        raise PermissionError(errno.EACCES, "Permission denied", "/nowhere/kernel_cache")

    cupy.RawModule = lambda **_: SimpleNamespace(compile=refuse)
    program._module.cache_clear()
    monkeypatch.setattr(program, "source_of", lambda *_: "")
    told = r"kept \(/nowhere/kernel_cache: permission denied\): set CUPY_CACHE_DIR"
    with pytest.raises(UnavailableBackend, match=told):
        program.compiled("bn128", program.HERE / "sort.cu")
