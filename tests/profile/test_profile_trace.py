"""The trace that Perfetto opens, and the samples of resident memory in it."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from profiled import made_up

from bigmem.profile.record import ALLOCATION, LAYER, RELEASE, RESIZE, Event, Record
from bigmem.profile.resident import Resident
from bigmem.profile.trace import trace

TIMES = st.floats(0, 1e6)
EVENTS = st.builds(
    Event,
    kind=st.sampled_from([ALLOCATION, RELEASE, LAYER, RESIZE]),
    begin=st.floats(10, 1e6),
    seconds=TIMES,
    thread=st.integers(1, 1 << 22),
    name=st.text(),
    nbytes=st.integers(0, 1 << 50),
    live=st.integers(0, 1 << 50),
    task=st.integers(0, 1 << 63),
)


def events_of(record: Record | None, resident: list[tuple[float, int]]) -> list[dict[str, Any]]:
    text = "".join(trace(record, process=7, name="it", begin=10.0, resident=resident))
    document = json.loads(text)
    assert document["displayTimeUnit"] == "ms"
    events = document["traceEvents"]
    assert isinstance(events, list)
    return events


def test_what_a_trace_holds():
    record = made_up(
        events=(
            Event(ALLOCATION, 11.0, 0.5, 7, "program.py:3", 1 << 20, 1 << 20, 0),
            Event(RESIZE, 11.75, 0.125, 7, "program.py:3", 2 << 20, 2 << 20, 0),
            Event(RELEASE, 12.0, 0.25, 8, "program.py:3", 2 << 20, 0, 0),
            Event(LAYER, 10.5, 3.0, 7, "prove", 0, 0, 0),
            Event(LAYER, 10.5, 3.0, 7, "fetch", 0, 0, 255),
        ),
        threads={7: "MainThread", 8: "worker"},
    )
    events = events_of(record, [(10.25, 4096)])
    named = [(e["name"], e["tid"], e["args"]["name"]) for e in events if e["ph"] == "M"]
    assert named == [
        ("process_name", 7, "it"),
        ("thread_name", 7, "MainThread"),
        ("thread_name", 8, "worker"),
    ]
    slices = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        ("allocate", 7, 1e6, 0.5e6),
        ("resize", 7, 1.75e6, 0.125e6),
        ("release", 8, 2e6, 0.25e6),
        ("prove", 7, 0.5e6, 3e6),
    ]
    spans = [(e["ph"], e["name"], e["id"], e["ts"]) for e in events if e["ph"] in "be"]
    assert spans == [("b", "fetch", "0xff", 0.5e6), ("e", "fetch", "0xff", 3.5e6)]
    counters = [(e["name"], e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert counters == [
        ("resident bytes", 0.25e6, 4096),
        ("live bytes", 1.5e6, 1 << 20),
        ("live bytes", 1.875e6, 2 << 20),
        ("live bytes", 2.25e6, 0),
    ]
    arguments = [e["args"] for e in events if e.get("cat") == "memory"]
    assert arguments == [{"line": "program.py:3", "nbytes": n << 20} for n in (1, 2, 2)]


def test_what_the_allocators_held_is_a_counter_a_state():
    held = [(10.5, {"live": 1 << 20, "warm": 0}), (11.0, {"live": 0, "warm": 1 << 20})]
    text = "".join(trace(None, process=7, name="it", begin=10.0, resident=[], held=held))
    counters = [e for e in json.loads(text)["traceEvents"] if e["ph"] == "C"]
    assert [(e["name"], e["ts"], e["args"]) for e in counters] == [
        ("allocators: live bytes", 0.5e6, {"bytes": 1 << 20}),
        ("allocators: warm bytes", 0.5e6, {"bytes": 0}),
        ("allocators: live bytes", 1e6, {"bytes": 0}),
        ("allocators: warm bytes", 1e6, {"bytes": 1 << 20}),
    ]


def test_a_run_without_numpy_has_a_trace():
    assert [event["ph"] for event in events_of(None, [(11.0, 1)])] == ["M", "C"]


def test_what_was_left_out_is_told():
    record = made_up(events_left_out=3)
    text = "".join(trace(record, process=1, name="", begin=0.0, resident=[]))
    assert json.loads(text)["otherData"] == {"events_left_out": 3}


@given(events=st.lists(EVENTS, max_size=8), threads=st.dictionaries(st.integers(1), st.text()))
def test_any_trace_is_sound(events, threads):
    found = events_of(made_up(events=tuple(events), threads=threads), [])
    for event in found:
        assert event["pid"] == 7
        if event["ph"] != "M":
            assert math.isfinite(event["ts"])
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
    assert len([e for e in found if e["ph"] == "C"]) == sum(e.kind != LAYER for e in events)


def test_samples_are_bounded_and_even(tmp_path: Path):
    import os

    clock = iter(range(1_000_000))
    resident = Resident(most=100, now=lambda: float(next(clock)))
    for _ in range(777):
        resident.sample(os.getpid())
    assert 50 <= len(resident.samples) < 100
    assert all(nbytes > 1 << 20 for _, nbytes in resident.samples)
    resident.sample(2**31 - 1)  # no such process: it has ended


def test_samples_spread_over_the_whole_life():
    """However often it is asked, the samples are as far apart at the end as at the beginning."""
    import os

    asked = 0
    resident = Resident(most=16, now=lambda: float(asked))
    for asked in range(1, 1000):  # noqa: B007
        resident.sample(os.getpid())
    times = [when for when, _ in resident.samples]
    gaps = {b - a for a, b in itertools.pairwise(times)}
    assert len(gaps) == 1
    assert times[-1] - times[0] > 800
