"""Calls of the fallback mechanisms during which the process may have waited: counted and told."""

import json
from typing import Literal

import pytest
from profiled import profiled
from waiting import wait_for

import bigmem
from bigmem import _core
from bigmem.cuda import PinnedAllocator, pinned
from bigmem.profile.record import Record, Stall
from bigmem.profile.trace import trace

MIB = 1 << 20
LONG = 0.02  # seconds that a call of the driver takes
Fallback = Literal["register", "alloc"]
CALLS = {
    "register": ("cuMemHostRegister", "cuMemHostUnregister"),
    "alloc": ("cuMemHostAlloc", "cuMemFreeHost"),
}
fallbacks = pytest.mark.parametrize("mechanism", list(CALLS))


def stalls_in(events: list[dict[str, object]]) -> list[tuple[object, object]]:
    found = [event for event in events if event["name"] == "stall"]
    assert all(event["ph"] == "X" for event in found)
    return [(event["args"], event["dur"]) for event in found]


@fallbacks
def test_each_stall_is_counted_and_stands_in_the_trace(
    fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch, mechanism: Fallback
) -> None:
    """While the GPU is idle there are none; while it works, pinning and giving back are some."""
    monkeypatch.setattr(pinned, "_PATIENCE", 0.05)
    allocator = PinnedAllocator(mechanism=mechanism)
    with bigmem.wrappers.Traced(allocator) as traced:
        traced.allocate(MIB).release()
        assert allocator.flush(20)
        wait_for(lambda: fake.memory() == 0)  # out of the map a moment before
        assert stalls_in(traced.events()) == []
        for call in CALLS[mechanism]:
            fake.delay(call, LONG)
        before, after = fake.stream(), fake.stream()
        fake.submit(before)
        traced.allocate(MIB).release()
        assert allocator.stalls == fake.stalls() == 1
        assert not allocator.flush(0.3)  # for longer than the memory waits for an idle GPU
        fake.submit(after)
        fake.finish(before)
        wait_for(lambda: allocator.stalls == 2)
        told = stalls_in(traced.events())
    assert fake.stalls() == 2
    assert [arguments for arguments, _ in told] == [{"mechanism": mechanism}] * 2
    seconds = [float(str(microseconds)) / 1e6 for _, microseconds in told]
    assert min(seconds) >= LONG
    assert sum(seconds) == pytest.approx(allocator.stall_seconds, abs=1e-5)
    fake.finish()


def test_a_trace_that_is_closed_is_told_nothing(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator(mechanism="alloc")
    traced = bigmem.wrappers.Traced(allocator)
    traced.close()
    length = len(traced.events())
    del traced
    fake.submit(fake.stream())
    block = allocator.allocate(MIB)
    assert allocator.stalls == 1
    other = bigmem.wrappers.Traced(bigmem.ArenaAllocator())
    assert len(other.events()) == 1 < length
    fake.finish()
    block.release()


PROGRAM = """
import os, time
import numpy as np
import bigmem
from bigmem import _core
from bigmem.cuda import PinnedAllocator, driver

fake = _core.FakeCuda()
driver._addresses = fake.functions
allocator = PinnedAllocator(mechanism="{mechanism}")
allocator.allocate(1 << 20).release()
assert allocator.flush(20)
fake.delay("{call}", 0.02)
fake.submit(fake.stream())
begin = time.monotonic()
block = allocator.allocate(1 << 20)
if not (child := os.fork()):
    os._exit(0)
os.waitpid(child, 0)
print(allocator.stalls, allocator.stall_seconds, begin, time.monotonic())
{end}
"""


@fallbacks
@pytest.mark.parametrize("end", ["", "import sys; sys.stdout.flush(); os._exit(0)"])
def test_a_profile_tells_of_stalls(mechanism: Fallback, end: str) -> None:
    """However the program ends, and whether or not there is room for other events."""
    program = PROGRAM.format(mechanism=mechanism, call=CALLS[mechanism][0], end=end)
    record, ((count, seconds, begin, after),) = ran(program)
    assert count == 1
    (stall,) = record.stalls
    assert stall.mechanism == mechanism
    assert stall.seconds == pytest.approx(seconds, abs=1e-6)
    assert stall.seconds >= LONG
    assert begin <= stall.begin <= after - stall.seconds
    assert record.events_left_out == 0
    text = "".join(trace(record, process=7, name="it", begin=record.begin, resident=[]))
    (event,) = (e for e in json.loads(text)["traceEvents"] if e["name"] == "stall")
    assert (event["ph"], event["args"]) == ("X", {"mechanism": mechanism})
    assert event["tid"] == stall.thread
    assert event["dur"] == pytest.approx(1e6 * stall.seconds, abs=0.01)
    assert event["ts"] == pytest.approx(1e6 * (stall.begin - record.begin), abs=0.01)


def ran(program: str) -> tuple[Record, list[list[float]]]:
    record, lines = profiled(program)
    return record, [[float(word) for word in line.split()] for line in lines]


def test_of_very_many_stalls_the_latest_are_kept() -> None:
    record, _ = ran(
        PROGRAM.format(mechanism="alloc", call="cuInit", end="")
        + """
blocks = [allocator.allocate(4096) for _ in range(5000)]
os._exit(0)
"""
    )
    assert len(record.stalls) == 4096
    assert record.events_left_out == 5001 - 4096
    assert record.stalls[0].begin < record.stalls[-1].begin
    assert isinstance(record.stalls[0], Stall)
