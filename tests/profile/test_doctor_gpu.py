"""What the doctor says of GPUs, with and without one; the real one is tried by hand."""

import ctypes
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from doctor_figures import GPU, MACHINE, MEASURED

import bigmem
from bigmem import _core
from bigmem.cuda import driver
from bigmem.profile import gpu
from bigmem.profile.findings import find
from bigmem.profile.gpu import GpuReport, PinnedArena, measure_gpu

NBYTES = 1 << 16


class Runtime:
    """The part of CuPy's runtime that is used, over ordinary memory; it keeps account."""

    def __init__(self) -> None:
        self.allocated: dict[int, object] = {}
        self.registered: set[int] = set()
        self.copied = {1: 0, 2: 0}

    def hostAlloc(self, nbytes: int, _: int) -> int:
        buffer = ctypes.create_string_buffer(nbytes)
        self.allocated[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def freeHost(self, address: int) -> None:
        del self.allocated[address]

    def hostRegister(self, address: int, nbytes: int, _: int) -> None:
        self.registered.add(address)

    def hostUnregister(self, address: int) -> None:
        self.registered.remove(address)

    def memcpy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        ctypes.memmove(target, source, nbytes)
        self.copied[kind] += 1

    def deviceSynchronize(self) -> None: ...

    def getDevice(self) -> int:
        return 0

    def getDeviceProperties(self, _: int) -> dict[str, bytes]:
        return {"name": b"Some GPU"}


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """A CuPy that is not there, with one device."""
    made = Runtime()
    memory = ctypes.create_string_buffer(NBYTES)
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        runtime=made, alloc=lambda nbytes: SimpleNamespace(ptr=ctypes.addressof(memory))
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(gpu, "_device_count", lambda: 1)
    return made


def test_every_call_is_measured_and_everything_given_back(runtime: Runtime) -> None:
    report = gpu._report(NBYTES)
    assert (report.note, report.devices) == (None, 1)
    assert report.costs is not None
    figures = asdict(report.costs)
    assert (figures.pop("device"), figures.pop("nbytes")) == ("Some GPU", NBYTES)
    assert all(value > 0 for value in figures.values())
    assert runtime.copied[1] == runtime.copied[2] > 0
    assert not runtime.allocated
    assert not runtime.registered


@pytest.mark.parametrize(("host_vmm", "mechanism"), [(True, "vmm"), (False, "register")])
def test_the_mechanism_of_pinned_memory_is_named(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, host_vmm: bool, mechanism: str
) -> None:
    fake = _core.FakeCuda(host_vmm=host_vmm)
    monkeypatch.setattr(driver, "_addresses", fake.functions)
    monkeypatch.setattr(driver, "_loaded", None)
    before = fake.memory()
    report = gpu._report(NBYTES)
    arena = report.arena
    assert arena is not None
    assert arena.mechanism == mechanism
    assert (arena.why is None) == host_vmm
    assert host_vmm or "vmm" in str(arena.why)
    assert arena.allocate_ms is not None
    assert arena.allocate_ms > 0
    assert fake.memory() == before
    said = "\n".join(find(MACHINE, MEASURED, report))
    assert f"({mechanism})" in said
    assert host_vmm or str(arena.why) in said


def test_pinned_memory_that_is_not_to_be_had_is_told_of(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> dict[str, int]:
        raise bigmem.BigmemError("the driver is too old")

    monkeypatch.setattr(driver, "_addresses", missing)
    monkeypatch.setattr(driver, "_loaded", None)
    report = gpu._report(NBYTES)
    assert report.costs is not None
    assert report.arena == PinnedArena(None, "the driver is too old")
    assert any(
        "not to be had: the driver is too old" in line for line in find(MACHINE, MEASURED, report)
    )


def test_whatever_the_driver_comes_up_with_is_told(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("cudaErrorMemoryAllocation: out of memory\nand a trace")

    monkeypatch.setattr(runtime, "hostAlloc", refuse)
    note = "not measured: cudaErrorMemoryAllocation: out of memory"
    assert gpu._report(NBYTES) == GpuReport(None, note, 1)


def test_without_a_device_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_device_count", lambda: 0)
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it now raises ImportError
    assert gpu._report(NBYTES) == GpuReport(None, "not measured: there is no GPU", 0)


def test_without_cupy_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert measure_gpu(NBYTES, 5.0).note == "not measured: CuPy is not installed"


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the other process; CuPy seems to be installed."""
    script = tmp_path / "python"
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(sys, "executable", str(script))
    return script


def write(script: Path, body: str) -> None:
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


@pytest.mark.parametrize("report", [GPU, GpuReport(None, "not measured: no luck", None)])
def test_the_answer_comes_back_whole_even_after_chatter(
    interpreter: Path, report: GpuReport
) -> None:
    write(interpreter, f"echo loading...\necho '{json.dumps(asdict(report))}'")
    assert measure_gpu(NBYTES, 30.0) == report


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("echo Traceback >&2; echo 'ImportError: no such thing' >&2; exit 1", "ImportError: no"),
        ("exit 3", "exit code 3"),
        ("kill -SEGV $$", "exit code -11"),
        ("echo '{}'", "exit code 0"),
        ('echo \'{"costs": {"a": 1}, "note": null, "devices": 1, "arena": null}\'', "exit code 0"),
        ("echo nonsense", "exit code 0"),
        ("exec sleep 60", "longer than the 0 s left"),
    ],
)
def test_a_process_that_fails_is_told_of(interpreter: Path, body: str, note: str) -> None:
    write(interpreter, body)
    report = measure_gpu(NBYTES, 0.4 if "sleep" in body else 30.0)
    assert report.costs is None
    assert report.note is not None
    assert report.note.startswith("not measured: ")
    assert note in report.note


def test_a_process_that_cannot_start_is_told_of(interpreter: Path) -> None:
    assert "No such file" in str(measure_gpu(NBYTES, 5.0).note)


def test_the_real_process_answers() -> None:
    """Here without a driver or a device; the module and its answer are the real ones."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bigmem.profile.gpu", str(NBYTES)],
        env={"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["costs"] is None
    assert answer["note"].startswith("not measured: ")
    assert done.stderr == ""
