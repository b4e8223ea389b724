"""Layers of threads and tasks, those that end in odd orders, and who is told of them."""

import asyncio
import contextvars
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from layer_times import Clock, flat, module

import bigmem

Run = Callable[..., str]


def test_a_new_thread_begins_at_the_top(clock: Clock) -> None:
    name = f"thread of {os.urandom(8).hex()}"

    def work() -> None:
        with bigmem.layer(name):
            clock.tick(1)

    with bigmem.record_layers() as recorded, bigmem.layer("outer"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert flat(recorded().layers) == {("outer",): (1, 1, 0)}
    assert flat(bigmem.layers().layers)[(name,)] == (1, 1, 0)


def test_to_thread_continues_the_layers_of_its_caller(clock: Clock, recorded: Any) -> None:
    def work() -> None:
        with bigmem.layer("work"):
            clock.tick(2)

    async def main() -> None:
        with bigmem.layer("outer"):
            clock.tick(1)
            await asyncio.to_thread(work)

    asyncio.run(main())
    assert flat(recorded().layers) == {("outer",): (1, 3, 2), ("outer", "work"): (1, 2, 0)}


def test_time_that_tasks_share_counts_once_in_the_layer_around_them(
    clock: Clock, recorded: Any
) -> None:
    @bigmem.layer("task")
    async def task(steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
            clock.tick(1)

    async def main() -> None:
        with bigmem.layer("gather"):
            await asyncio.gather(task(2), task(5))
            clock.tick(0.5)

    asyncio.run(main())
    times = flat(recorded().layers)
    # 7 s of work in turns: the first ends after its second turn, at 3 s.
    assert times == {("gather",): (1, 7.5, 7), ("gather", "task"): (2, 10, 0)}


def test_a_task_that_outlives_its_creator_counts_in_full(clock: Clock, recorded: Any) -> None:
    @bigmem.layer("late")
    async def late(go: asyncio.Event) -> None:
        clock.tick(1)
        await go.wait()
        clock.tick(5)

    async def main() -> None:
        go = asyncio.Event()
        with bigmem.layer("start"):
            task = asyncio.create_task(late(go))
            await asyncio.sleep(0)
        clock.tick(2)
        go.set()
        with bigmem.layer("other"):
            await task

    asyncio.run(main())
    assert flat(recorded().layers) == {
        ("start",): (1, 1, 1),
        ("start", "late"): (1, 8, 0),
        ("other",): (1, 5, 0),
    }


@pytest.mark.parametrize("late", ["__enter__", "__exit__"])
def test_a_thread_that_comes_while_its_surroundings_end(
    clock: Clock, recorded: Any, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = bigmem.layer("inner")
    outer = bigmem.layer("outer")
    outer.__enter__()
    clock.tick(1)
    beside = contextvars.copy_context()
    if late == "__exit__":
        beside.run(inner.__enter__)
    clock.tick(4)

    def interrupted() -> float:
        monkeypatch.setattr(module, "_now", clock)
        end = clock()
        clock.tick(2)
        beside.run(getattr(inner, late), *([None] * 3 if late == "__exit__" else []))
        return end

    monkeypatch.setattr(module, "_now", interrupted)
    outer.__exit__(None, None, None)
    # Not more than the layer's own time, and not less than nothing.
    expected = {"__enter__": (1, 5, 0), "__exit__": (1, 5, 5)}
    assert flat(recorded().layers)[("outer",)] == expected[late]


def test_no_call_of_many_threads_is_lost(recorded: Any) -> None:
    threads, calls = 8, 1500
    shared = bigmem.layer("shared")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with bigmem.layer("outer"), ThreadPoolExecutor(threads) as pool:

            def work() -> None:
                for _ in range(calls):
                    with shared, bigmem.layer("own"):
                        pass

            running = [pool.submit(contextvars.copy_context().run, work) for _ in range(threads)]
            while not all(one.done() for one in running):
                flat(recorded().layers)
    finally:
        sys.setswitchinterval(interval)
    outer = recorded().layers[0]
    times = flat(outer.layers)
    assert {path: found[0] for path, found in times.items()} == {
        ("shared",): threads * calls,
        ("shared", "own"): threads * calls,
    }
    assert 0 < outer.inner_s <= outer.wall_s
    assert not shared._frames


def test_one_object_may_be_entered_again_before_it_was_left(clock: Clock, recorded: Any) -> None:
    work = bigmem.layer("work")
    with work:
        clock.tick(1)
        with work:
            clock.tick(2)
            with work:
                clock.tick(4)
        clock.tick(8)
    assert flat(recorded().layers) == {
        ("work",): (1, 15, 6),
        ("work", "work"): (1, 6, 4),
        ("work", "work", "work"): (1, 4, 0),
    }


def test_one_object_in_tasks_that_take_turns(clock: Clock, recorded: Any) -> None:
    shared = bigmem.layer("shared")

    async def task(name: str, steps: int) -> None:
        with bigmem.layer(name), shared:
            for _ in range(steps):
                await asyncio.sleep(0)
                clock.tick(1)

    async def main() -> None:
        await asyncio.gather(task("short", 1), task("long", 3))

    asyncio.run(main())
    times = flat(recorded().layers)
    assert times[("short", "shared")] == (1, 1, 0)
    assert times[("long", "shared")] == (1, 4, 0)  # its own three and the other's one


def test_one_object_that_is_left_where_it_was_not_entered(clock: Clock, recorded: Any) -> None:
    shared = bigmem.layer("shared")
    here, there = contextvars.copy_context(), contextvars.copy_context()

    def leave(context: contextvars.Context) -> None:
        context.run(shared.__exit__, None, None, None)

    here.run(shared.__enter__)
    here.run(shared.__enter__)
    clock.tick(1)
    leave(here.copy())  # the second: the innermost one there too
    there.run(shared.__enter__)
    clock.tick(2)
    leave(here)  # the first
    here.run(shared.__enter__)
    clock.tick(4)
    leave(contextvars.copy_context())  # unknown there: the latest
    clock.tick(8)
    leave(there)
    assert flat(recorded().layers) == {
        ("shared",): (3, 3 + 4 + 14, 1),
        ("shared", "shared"): (1, 1, 0),
    }


def test_a_layer_around_a_yield_that_ends_after_its_surroundings(
    clock: Clock, recorded: Any
) -> None:
    def suspended() -> Iterator[None]:
        with bigmem.layer("inside"):
            yield

    with bigmem.layer("outer"):
        made = suspended()
        next(made)
        clock.tick(1)
    with bigmem.layer("next"):  # entered while "inside" is open
        clock.tick(2)
    made.close()
    with bigmem.layer("last"):
        clock.tick(4)
    assert flat(recorded().layers) == {
        ("outer",): (1, 1, 1),
        ("outer", "inside"): (1, 3, 2),
        ("outer", "inside", "next"): (1, 2, 0),
        ("last",): (1, 4, 0),
    }


def test_exceptions_pass_and_are_timed(clock: Clock, recorded: Any) -> None:
    @bigmem.layer("fails")
    def fails() -> None:
        clock.tick(2)
        raise KeyError("x")

    with pytest.raises(KeyError), bigmem.layer("outer"):
        fails()
    with bigmem.layer("after"):
        pass
    assert flat(recorded().layers) == {
        ("outer",): (1, 2, 2),
        ("outer", "fails"): (1, 2, 0),
        ("after",): (1, 0, 0),
    }


# Observers and the trace.


@pytest.fixture
def spans() -> Iterator[list[Any]]:
    spans: list[Any] = []
    module.observe(spans.append)
    yield spans
    module.unobserve(spans.append)


def test_observers_are_told_of_every_call(spans: list[Any]) -> None:
    before = time.monotonic()
    with bigmem.layer("outer"):
        for _ in range(2):
            with bigmem.layer("inner"):
                time.sleep(0.001)
    after = time.monotonic()
    thread = threading.Thread(target=bigmem.layer("thread")(time.monotonic))
    thread.start()
    thread.join()
    assert [span.name for span in spans] == ["inner", "inner", "outer", "thread"]
    one, two, outer, elsewhere = spans
    assert before <= outer.begin_s <= one.begin_s
    assert one.begin_s + one.seconds <= two.begin_s
    assert two.begin_s + two.seconds <= outer.begin_s + outer.seconds <= after
    assert min(one.seconds, two.seconds) >= 0.001
    assert {span.thread_id for span in (one, two, outer)} == {threading.get_native_id()}
    assert elsewhere.thread_id == thread.native_id
    assert {span.task_id for span in spans} == {0}
    module.unobserve(spans.append)
    module.unobserve(spans.append)
    with bigmem.layer("unseen"):
        pass
    assert len(spans) == 4


def test_what_a_layer_does_itself_is_surrounded() -> None:
    told: list[object] = []

    def after() -> None:
        told.append("after")

    def observer(span: Any) -> None:
        told.append(span.seconds)

    module.surround(told.append, after)
    module.observe(observer)
    try:
        with bigmem.layer("outer"):
            told.append("body")
            with bigmem.layer("inner"):
                pass
    finally:
        module.unsurround(told.append, after)
        module.unobserve(observer)
    with bigmem.layer("unseen"):
        pass
    module.unsurround(told.append, after)  # is undone already
    shown = [type(what) if isinstance(what, float) else what for what in told]
    end = [None, float, "after"]
    assert shown == ["outer", "after", "body", "inner", "after", *end, *end]


def test_an_observer_may_leave_while_it_is_told(spans: list[Any]) -> None:
    def once(span: Any) -> None:
        module.unobserve(once)
        spans.append("once")

    last: list[Any] = []
    module.observe(once)
    module.observe(last.append)
    try:
        for _ in range(2):
            with bigmem.layer("x"):
                pass
    finally:
        module.unobserve(last.append)
    first, two, second = spans
    assert (two, last) == ("once", [first, second])


def test_observers_tell_tasks_apart(spans: list[Any]) -> None:
    @bigmem.layer("task")
    async def task() -> None:
        with bigmem.layer("step"):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(task(), task())

    asyncio.run(main())
    tasks = [span.task_id for span in spans]
    assert 0 not in tasks
    assert sorted(tasks.count(number) for number in set(tasks)) == [2, 2]
    assert [span.name for span in spans] == ["step", "task", "step", "task"]
    assert tasks[0] == tasks[1]


def test_layers_stand_in_the_log_around_what_happened_in_them() -> None:
    with bigmem.Traced(bigmem.SystemAllocator()) as watched:
        with bigmem.layer('a "name"'):
            watched.allocate(100)
        with bigmem.layer("half a pair \ud800"):
            pass
        events = watched.events()
    with bigmem.layer("after"):
        pass
    assert [e["name"] for e in watched.events()][-1] == "close"
    allocate, release = (
        next(e for e in events if e["name"] == name) for name in ("allocate", "release")
    )
    layer, unnamed = (e for e in events if e.get("cat") == "layer")
    assert (layer["ph"], layer["name"], unnamed["name"]) == ("X", 'a "name"', "?")
    assert (layer["pid"], layer["tid"]) == (os.getpid(), threading.get_native_id())
    assert layer["ts"] <= allocate["ts"] <= release["ts"]
    assert release["ts"] + release["dur"] <= layer["ts"] + layer["dur"] + 0.002


def test_layers_of_tasks_stand_in_the_log_by_task() -> None:
    @bigmem.layer("task")
    async def task() -> None:
        with bigmem.layer("step"):
            await asyncio.sleep(0.001)

    async def main() -> None:
        await asyncio.gather(task(), task())

    with bigmem.Traced(bigmem.SystemAllocator()) as watched:
        asyncio.run(main())
    events = [e for e in watched.events() if e.get("cat") == "layer"]
    assert len(events) == 8
    by_task: dict[str, list[Any]] = {}
    for event in sorted(events, key=lambda e: e["ts"]):
        by_task.setdefault(event["id"], []).append((event["ph"], event["name"]))
    nested = [("b", "task"), ("b", "step"), ("e", "step"), ("e", "task")]
    assert list(by_task.values()) == [nested, nested]


def test_a_log_that_is_gone_is_told_nothing() -> None:
    count = len(module._observers)
    watched = bigmem.Traced(bigmem.SystemAllocator())
    assert len(module._observers) == count + 1
    del watched
    gc.collect()
    assert len(module._observers) == count


# The process.


def test_layers_go_on_across_a_fork_and_after_threads_were_stopped(run_python: Run) -> None:
    out = run_python(
        """
        import os, sys, threading, warnings
        import bigmem
        warnings.filterwarnings("ignore", category=DeprecationWarning)

        class Late:
            def __del__(self, layer=bigmem.layer, write=os.write):
                with layer("late"):
                    write(1, b"late")

        def busy():
            while True:
                with bigmem.layer("busy"):
                    pass

        for _ in range(3):
            threading.Thread(target=busy, daemon=True).start()
        sys.late = Late()
        with bigmem.layer("outer"):
            child = os.fork()
            with bigmem.layer("inner"):
                pass
        names = [one.name for one in bigmem.layers().layers]
        assert sorted(names) == ["busy", "outer"], names
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert out == "late"


def test_an_interrupt_in_what_surrounds_a_layer_ends_it() -> None:
    """As Ctrl-C does that comes while somebody reads clocks there."""

    def before(name: str | None) -> None:
        if name is None:
            raise KeyboardInterrupt

    after = list  # does nothing
    module.surround(before, after)
    try:
        with bigmem.record_layers() as recorded:
            with pytest.raises(KeyboardInterrupt), bigmem.layer("proof"):
                pass
            module.unsurround(before, after)
            with bigmem.layer("next"):
                pass
    finally:
        module.unsurround(before, after)
    assert [one.name for one in recorded().layers] == ["proof", "next"]
