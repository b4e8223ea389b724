"""Captures that nobody told of."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigmem import _core
from bigmem.cuda import PinnedAllocator, capturing, driver

MIB = 1 << 20
NOT_SUPPORTED, INVALIDATED = 801, 901
# What looking takes.
LOOK = ["cuCtxGetId", "cuStreamCreate", "cuStreamBeginCapture", "cuStreamGetCaptureInfo"]


def looks(fake: _core.FakeCuda) -> int:
    return fake.calls("cuStreamBeginCapture")


def quiet_fences() -> _core.CudaFences:
    """Those of an allocator, from a moment on at which no capture is suspected."""
    PinnedAllocator()
    fences = driver.loaded().fences
    while fences.guard() is None:
        time.sleep(0.01)
    return fences


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0.01, 3)), min_size=1, max_size=30
    )
)
def test_captures_beyond_those_told_of_are_suspected_for_a_second(
    steps: list[tuple[int, int, float]],
) -> None:
    watch = _core.CaptureWatch()
    number = told = 0
    now, until = 100.0, 0.0
    for others, told_now, seconds in steps:
        number += others + 1
        told += told_now
        now += seconds
        watch.look(number, told, now)
        if others > told_now:
            until = now + 1
        assert watch.suspects(now) == (now < until)
        assert watch.suspects(now + 0.9) == (now + 0.9 < until)
        assert not watch.suspects(now + 1.01)


def test_a_number_out_of_order_is_suspected() -> None:
    watch = _core.CaptureWatch()
    watch.look(5, 4, 1.0)
    assert not watch.suspects(1.0)
    watch.look(3, 4, 2.0)
    assert watch.suspects(2.0)


def test_an_unknown_capture_on_a_non_blocking_stream_survives(fake: _core.FakeCuda) -> None:
    fences = quiet_fences()
    stream = fake.stream(blocking=False)
    allocator = PinnedAllocator()
    fake.begin_capture(stream)
    allocator.allocate(MIB).release()
    assert not allocator.flush(0.3)
    assert fences.guard() is None
    assert fake.end_capture(stream)
    assert allocator.flush(10)
    assert fences.guard() is not None


def test_suspicion_lasts_a_second_and_asks_the_driver_nothing(fake: _core.FakeCuda) -> None:
    fences = quiet_fences()
    stream = fake.stream(blocking=False)
    fake.begin_capture(stream)
    begin = time.monotonic()
    assert fences.guard() is None
    assert fake.end_capture(stream)
    calls = fake.own_calls()
    while fences.guard() is None:
        assert fake.own_calls() == calls
        time.sleep(0.01)
    assert time.monotonic() - begin >= 1


def test_one_look_a_guard(fake: _core.FakeCuda) -> None:
    fences = quiet_fences()
    before = looks(fake)
    guards = [fences.guard() for _ in range(5)]
    assert all(guards)
    assert looks(fake) == before + 5
    assert fake.graphs() == 0


def test_captures_that_were_told_of_do_not_count(fake: _core.FakeCuda) -> None:
    fences = quiet_fences()
    stream = fake.stream(blocking=False)
    for captures in (1, 3):
        for _ in range(captures):
            with capturing():
                fake.begin_capture(stream)
                assert fences.guard() is None
                assert fake.end_capture(stream)
        assert fences.guard() is not None
    with capturing():
        pass
    fake.begin_capture(stream)  # hidden by the one that was told of, which never began
    assert fake.end_capture(stream)
    assert fences.guard() is not None
    fake.begin_capture(stream)
    assert fake.end_capture(stream)
    assert fences.guard() is None


def test_every_context_has_a_stream_of_ours(
    fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = _core.FakeCuda(devices=2)
    monkeypatch.setattr(driver, "_loaded", None)
    two.activate(1)
    fences = quiet_fences()
    before = looks(two)
    assert fences.guard() is not None
    assert looks(two) == before + 2
    assert fences.guard() is not None
    assert looks(two) == before + 4


def test_a_reset_device_gets_a_new_stream(fake: _core.FakeCuda) -> None:
    fences = quiet_fences()
    created = fake.calls("cuStreamCreate")
    assert fences.guard() is not None
    assert fake.calls("cuStreamCreate") == created
    fake.reset_device(0)
    fake.activate(0)
    before = looks(fake)
    assert fences.guard() is not None
    assert looks(fake) == before + 1
    assert fake.calls("cuStreamCreate") == created + 1
    fake.begin_capture(fake.stream(blocking=False))
    assert fences.guard() is None


@pytest.mark.parametrize("function", LOOK)
def test_a_driver_that_refuses_to_show_captures(fake: _core.FakeCuda, function: str) -> None:
    fences = quiet_fences()
    fake.reset_device(0)  # or there would be a stream
    fake.activate(0)
    fake.fail(function, NOT_SUPPORTED)
    assert fences.guard() is not None
    fake.fail(function, 0)
    while fences.guard() is None:  # what began without a number that we saw is suspected
        time.sleep(0.01)


def test_a_look_that_others_spoil_leaves_nothing_behind(fake: _core.FakeCuda) -> None:
    fences = quiet_fences()
    created, destroyed = fake.calls("cuStreamCreate"), fake.calls("cuStreamDestroy")
    fake.fail("cuStreamEndCapture", INVALIDATED, times=1)
    assert fences.guard() is not None
    assert fake.calls("cuStreamDestroy") == destroyed + 1
    assert fences.guard() is not None
    assert fake.calls("cuStreamCreate") == created + 1


@pytest.mark.parametrize("missing", [*LOOK, "cuStreamDestroy", "cuStreamEndCapture"])
def test_an_older_driver_is_used_without(
    fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    functions = {name: at for name, at in fake.functions().items() if name != missing}
    monkeypatch.setattr(driver, "_addresses", lambda: functions)
    allocator = PinnedAllocator()
    before = looks(fake)
    allocator.allocate(MIB).release()
    assert allocator.flush(10)
    assert looks(fake) == before
