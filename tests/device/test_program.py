"""Kernels that CuPy compiles and loads: what is told when that fails. CuPy itself is a stand-in."""

import errno
import sys
from types import SimpleNamespace

import pytest

from prover.backends.cuda import program
from prover.backends.cuda.program import Program
from prover.errors import UnavailableBackend

NOT_FOUND, OUT_OF_MEMORY, ILLEGAL_ADDRESS, NO_BINARY = 500, 2, 700, 209


class DriverError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


class CompileException(Exception):
    """As CuPy's: no RuntimeError."""


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
    compiler = SimpleNamespace(CompileException=CompileException)
    cuda = SimpleNamespace(Device=lambda: device, driver=driver, compiler=compiler)
    made = SimpleNamespace(cuda=cuda)
    monkeypatch.setitem(sys.modules, "cupy", made)
    return made


def test_a_kernel_is_in_any_of_the_files():
    found = Program(Module("a"), Module("b"))
    # 64 registers a thread, 128 threads: eight blocks a multiprocessor.
    assert [found.resident_blocks(name, 128) for name in "ab"] == [80, 80]
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


@pytest.fixture
def compiled_with(cupy, monkeypatch):
    """Compile a program with a CuPy that raises an error."""

    def compile_with(error):
        def refuse():
            raise error

        cupy.RawModule = lambda **_: SimpleNamespace(compile=refuse)
        program._module.cache_clear()
        monkeypatch.setattr(program, "source_of", lambda *_: "")
        return program.compiled("bn128", program.HERE / "sort.cu")

    return compile_with


def test_a_cache_that_cannot_be_written_is_told(compiled_with):
    told = r"kept \(/nowhere/kernel_cache: permission denied\): set CUPY_CACHE_DIR"
    with pytest.raises(UnavailableBackend, match=told):
        compiled_with(PermissionError(errno.EACCES, "Permission denied", "/nowhere/kernel_cache"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CuPy failed to load libnvrtc.so.13\nand more"), "CuPy failed to load .*13"),
        (OSError("libnvrtc.so.13: cannot open shared object file"), "libnvrtc.* object file"),
        (CompileException("\nsort.cu(1): error: what\n1 error detected"), r"sort.cu\(1\): .* what"),
        (DriverError(NO_BINARY), "status 209"),
        (DriverError(None), "status None"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_kernels_that_cannot_be_compiled_are_told(compiled_with, error, reason):
    told = rf"kernels cannot be compiled for this GPU \({reason}\); use --backend cpu$"
    with pytest.raises(UnavailableBackend, match=told) as refused:
        compiled_with(error)
    assert "\n" not in str(refused.value)


def test_a_driver_without_memory_to_load_a_program(compiled_with):
    with pytest.raises(MemoryError, match="status 2"):
        compiled_with(DriverError(OUT_OF_MEMORY))
