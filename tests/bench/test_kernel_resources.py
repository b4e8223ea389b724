"""What is read from the assembler's log of a compiled program."""

import importlib.metadata
import sys

import pytest

from bench import kernel_resources
from bench.kernel_resources import Kernel

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
    184 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 184 bytes cumulative stack size
ptxas info    : Function properties for square
    96 bytes stack frame, 100 bytes spill stores, 140 bytes spill loads
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
"""


def test_spills_of_the_functions_that_a_kernel_calls_are_its_own() -> None:
    found = dict(kernel_resources.resources(lambda source, options: LOG, "sm_90", "sort"))
    assert list(found) == ["sort.cu bn128", "sort.cu bls12381"]
    for kernels in found.values():
        assert kernels == [Kernel("first", 32, 0, 0), Kernel("second", 255, 184, 260)]


def test_a_table_of_them() -> None:
    head, row = kernel_resources.lines("sort.cu bn128", [Kernel("first", 32, 16, 8)])
    assert head.split() == ["sort.cu", "bn128", "registers", "local", "bytes", "spilled"]
    assert row.split() == ["first", "32", "16", "8"]


def test_a_log_that_tells_of_no_kernel_is_an_error() -> None:
    found = kernel_resources.resources(lambda source, options: "", "sm_90", "sort")
    with pytest.raises(ValueError, match=r"log of sort\.cu bn128 tells of no kernel"):
        next(found)


def test_results_that_the_driver_keeps_are_left_alone() -> None:
    """NVRTC refuses what it does not know: it keeps nothing before 12.9."""
    assert kernel_resources.anew((12, 8)) == []
    assert kernel_resources.anew((12, 9)) == kernel_resources.anew((13, 0)) == ["--no-cache"]
    wanted = kernel_resources.options("sm_90")
    source = 'extern "C" __global__ void one(int* x) { *x = 1; }'
    assert "Compiling entry function 'one'" in kernel_resources.wheel()(source, wanted)


def test_a_missing_compiler_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    monkeypatch.setattr(sys, "argv", ["kernel_resources"])
    with pytest.raises(SystemExit) as ended:
        kernel_resources.main()
    assert ended.value.code == 2
    assert "NVRTC's wheel is missing" in capsys.readouterr().err.splitlines()[-1]
