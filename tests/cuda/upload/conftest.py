"""Streams and pinned memory of a GPU that is none."""

import importlib
import threading
from collections.abc import Iterator

import pytest

from bigmem import _core
from bigmem.cuda import PinnedAllocator

from .gpu_memory import on_device

# The package shows the function under this name.
module = importlib.import_module("bigmem.cuda.upload")


@pytest.fixture
def stream(fake: _core.FakeCuda) -> int:
    return fake.stream(blocking=False)


@pytest.fixture
def allocator(fake: _core.FakeCuda) -> Iterator[PinnedAllocator]:
    """Whatever a test does, it leaves nothing behind."""
    with PinnedAllocator() as made:
        yield made
        fake.finish()
        assert made.flush(10)
        assert made.stats().live == 0
    on_device.clear()


@pytest.fixture
def at_work(fake: _core.FakeCuda, stream: int) -> Iterator[None]:
    """The GPU does a little of what it has to do, again and again."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.0005):
            fake.finish(stream, 1)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with so many processors."""
    monkeypatch.setattr(module, "_THREADS", 3)
