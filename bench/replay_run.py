"""One replay: the operations of a log, on the malloc that this process was started with.

Arrays of NumPy's are made and let go as the program did: on as many threads, in the same order, at
the same pace if that is 1, as fast as possible if it is 0. Each is touched as soon as it is there,
one byte a page, as far as the program has touched it. Between operations nothing is done.
"""

from __future__ import annotations

import gc
import resource
import threading
import time
from typing import Any

import numpy as np

import bigmem
from bench import machine
from bench.core.contenders import Contender
from bench.replay_log import Log, Operation
from bench.timing import Array
from bigmem import osmem

PAGE = 4096


class Replay:
    """A log on its way; operations begin one after another, whatever their threads."""

    def __init__(self, log: Log, pace: float) -> None:
        self._log = log
        self._pace = pace
        self._arrays: dict[int, Array] = {}
        self._changed = threading.Condition()
        self._next = 0
        self._begin = 0.0
        self._failure: BaseException | None = None
        self.seconds = {"allocate_s": 0.0, "touch_s": 0.0, "release_s": 0.0}

    def run(self) -> None:
        """Perform all operations; the program's main thread is this one."""
        numbers: list[list[int]] = [[] for _ in range(self._log.threads)]
        for number, one in enumerate(self._log.operations):
            numbers[one.thread].append(number)
        threads = [threading.Thread(target=self._perform, args=(mine,)) for mine in numbers[1:]]
        self._begin = time.perf_counter()
        for thread in threads:
            thread.start()
        self._perform(numbers[0])
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _perform(self, numbers: list[int]) -> None:
        spent = dict.fromkeys(self.seconds, 0.0)
        try:
            for number in numbers:
                operation = self._log.operations[number]
                if not self._take_turn(number, operation):
                    return
                if operation.is_release:
                    self._release(operation, spent)
                else:
                    self._allocate(operation, spent)
        except BaseException as error:  # the other threads would wait for ever
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()
        with self._changed:
            for name, seconds in spent.items():
                self.seconds[name] += seconds

    def _take_turn(self, number: int, operation: Operation) -> bool:
        """Wait until the operation may begin; False if it is not to, since another has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number or self._failure)
        if self._failure:
            return False
        early = self._begin + operation.at * self._pace - time.perf_counter()
        if early > 0:
            time.sleep(early)
        with self._changed:
            self._next = number + 1
            self._changed.notify_all()
        return True

    def _allocate(self, operation: Operation, spent: dict[str, float]) -> None:
        make = np.zeros if operation.zeroed else np.empty
        start = time.perf_counter()
        array = make(operation.nbytes, np.uint8)
        made = time.perf_counter()
        array[: operation.touched : PAGE] = 1
        touched = time.perf_counter()
        spent["allocate_s"] += made - start
        spent["touch_s"] += touched - made
        with self._changed:
            self._arrays[operation.block] = array
            self._changed.notify_all()

    def _release(self, operation: Operation, spent: dict[str, float]) -> None:
        with self._changed:
            # Another thread may still be making it.
            self._changed.wait_for(lambda: operation.block in self._arrays or self._failure)
            array = self._arrays.pop(operation.block, None)
        start = time.perf_counter()
        del array
        spent["release_s"] += time.perf_counter() - start


def measure(log: Log, contender: Contender, pace: float) -> dict[str, Any]:
    """Replay a log in the contender's process; seconds, bytes, and times of the monotonic clock."""
    allocator = contender.make()
    if allocator is not None:
        bigmem.install(allocator, min_bytes=max(1, log.facts["smallest"]))
    replay = Replay(log, pace)
    gc.collect()
    machine.forget_peak()
    before, usage = osmem.resident_bytes(), resource.getrusage(resource.RUSAGE_SELF)
    begin = time.monotonic()
    replay.run()
    end = time.monotonic()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        **replay.seconds,
        "wall_s": end - begin,
        "system_s": after.ru_stime - usage.ru_stime,
        "faults": after.ru_minflt - usage.ru_minflt,
        "before_bytes": before,
        "peak_bytes": osmem.peak_resident_bytes() - before,
        "end_bytes": osmem.resident_bytes() - before,
        "begin": begin,
        "end": end,
        "served": 0 if allocator is None else allocator.stats().allocations,
    }
