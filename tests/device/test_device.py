"""A device as a whole, by a stand-in for CuPy over a driver without a GPU."""

import sys
import threading

import pytest
from cupy_stand_in import SimpleCard

import bigmem
from prover.backends import get_backend, get_cuda_backends
from prover.backends.cuda import device as device_module
from prover.backends.cuda.device import Device
from prover.curves import CURVES
from prover.errors import UnavailableBackend


def test_getting_kernels_ready_is_a_layer(fake, monkeypatch):
    """It takes a part of a second if they are compiled already, and seconds if not."""
    monkeypatch.setattr(Device, "_compiled", lambda self, *name: name)
    monkeypatch.setattr(device_module, "Program", lambda module: module)
    device = Device()
    with bigmem.record_layers() as recorded:
        for _ in range(2):
            device.prepare(CURVES["bn128"])
    assert [(layer.name, layer.calls) for layer in recorded().layers] == [("kernels", 1)]


@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_without_nvrtc_there_is_no_device(fake, monkeypatch, error):
    """CuPy looks for it when it is first asked for something, which must not be in a proof."""

    def refuse():
        raise error("CuPy failed to load libnvrtc.so.13: no such file\nlook here")

    monkeypatch.setattr(sys.modules["cupy"].cuda.nvrtc, "getVersion", refuse)
    reason = (
        "the cuda backend's kernels cannot be compiled for this GPU (CuPy failed to load "
        "libnvrtc.so.13: no such file); "
    )
    with pytest.raises(UnavailableBackend) as refused:
        get_backend("cuda")
    assert str(refused.value) == f"{reason}use --backend cpu"
    with pytest.raises(UnavailableBackend) as refused:
        get_cuda_backends([0, 0])
    assert str(refused.value) == f"{reason}leave out --devices"
    told = []
    assert get_backend("auto", domain=1 << 20, notify=told.append).name == "cpu"
    assert told == [f"proving on the CPU: {reason}use --backend cpu"]


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_without_threads_kernels_are_compiled_in_turn(fake, told, monkeypatch, threads):
    left = [None] * threads

    def start(thread, original=threading.Thread.start):
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        original(thread)

    device = Device(notify=told.append)
    monkeypatch.setattr(Device, "_compiled", lambda self, *name: name)
    monkeypatch.setattr(device_module, "Program", lambda module: module)
    monkeypatch.setattr(threading.Thread, "start", start)
    device.prepare(CURVES["bn128"])
    assert len(device._programs) == len(device_module._PROGRAMS)
    assert told == []


def test_a_program_that_cannot_be_compiled_is_tried_once(fake, monkeypatch):
    """Whatever the error: only that of a thread means that there are none."""
    tried = []

    def fail(self, *name):
        tried.append(name)
        raise RuntimeError("no such register")

    device = Device()
    monkeypatch.setattr(Device, "_compiled", fail)
    with pytest.raises(RuntimeError, match="register"):
        device.prepare(CURVES["bn128"])
    assert len(tried) == len(device_module._PROGRAMS)


def test_what_others_hold_is_out_of_reach(fake, monkeypatch):
    device = Device(limit=1 << 29)
    assert (device.reach, device.available) == (1 << 29, 1 << 29)
    monkeypatch.setattr(SimpleCard, "mem_info", (1 << 20, 1 << 30))
    device._pool.total, device._pool.used = 5000, 2000
    assert device.reach == (1 << 20) + 5000
    assert device.available == (1 << 20) + 3000


@pytest.mark.parametrize(("limit", "sharers"), [(0, 1), (3, 4), (5, 2), (1 << 40, 2), (None, 3)])
def test_no_limit_is_so_low_that_it_is_none(fake, limit, sharers):
    device = Device(limit, sharers=sharers)
    most = (1 << 30) if limit is None else min(limit, 1 << 30)
    assert 0 <= device.limit <= most // sharers  # as messages tell it
    assert device._pool.limit == max(1, device.limit)
