"""Every kind of allocator, for tests of what they have in common."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import SupportsIndex

import pytest

import bigmem
from bigmem import _core
from bigmem.native import NativeAllocator

POLICIES = {
    "inline": bigmem.Inline(),
    "inline-free": bigmem.Inline(advice="free"),
    "deferred": bigmem.Deferred(),
    "deferred-free": bigmem.Deferred(advice="free"),
    "recycle": bigmem.Recycle(),
    "recycle-at-once": bigmem.Recycle(decay=0),
    "recycle-free": bigmem.Recycle(decay=0.01, advice="free"),
    "recycle-little": bigmem.Recycle(max_warm="1MiB"),
}


class ByteArrayAllocator(bigmem.Allocator):
    """What a user might write: blocks over any writable buffer."""

    def allocate(
        self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
    ) -> bigmem.Block:
        size = self._request(nbytes, alignment)
        try:
            memory = memoryview(bytearray(size + alignment))
        except (MemoryError, OverflowError):
            raise bigmem.OutOfMemory(f"no {size} bytes") from None
        base = bigmem.Block(memory, allocator=self).address
        offset = -base % alignment
        return bigmem.Block(memory[offset : offset + size], allocator=self)


def native(
    release: "bigmem.Inline | bigmem.Deferred | bigmem.Recycle",
    huge: str,
    *,
    mapping_per_block: bool = False,
    table: "_core.ProbedPages | None" = None,
    budget: bigmem.Budget | None = None,
    reclaim: bigmem.ReclaimPool | None = None,
) -> NativeAllocator:
    return NativeAllocator(
        pages=bigmem.AnonymousPages(huge=huge),  # type: ignore[arg-type]
        release=release,
        reserve=0,
        mapping_per_block=mapping_per_block,
        budget=budget,
        reclaim=reclaim,
        name=None,
        table=table,
    )


@pytest.fixture(name="native")
def native_fixture() -> Callable[..., NativeAllocator]:
    return native


def _makers() -> dict[str, Callable[[], bigmem.Allocator]]:
    makers: dict[str, Callable[[], bigmem.Allocator]] = {
        "system": bigmem.SystemAllocator,
        "python": ByteArrayAllocator,
    }
    for huge in ("never", "always"):
        for name, policy in POLICIES.items():
            makers[f"arena-{name}-{huge}"] = lambda p=policy, h=huge: native(p, h)
            if not isinstance(policy, bigmem.Recycle):
                makers[f"mapped-{name}-{huge}"] = lambda p=policy, h=huge: native(
                    p, h, mapping_per_block=True
                )
    for name, policy in POLICIES.items():
        # As under vm.overcommit_memory=2.
        makers[f"strict-{name}"] = lambda p=policy: native(p, "auto", table=_core.ProbedPages(True))
    for name in ("recycle", "deferred"):
        makers[f"arena-{name}-auto"] = lambda p=POLICIES[name]: native(p, "auto")
    makers["mapped-auto"] = lambda: native(bigmem.Inline(), "auto", mapping_per_block=True)
    makers["arena-budget"] = lambda: native(bigmem.Recycle(), "auto", budget=bigmem.Budget("4GiB"))
    return makers


MAKERS = _makers()


@pytest.fixture(params=list(MAKERS))
def allocator(request: pytest.FixtureRequest) -> Iterator[bigmem.Allocator]:
    made = MAKERS[request.param]()
    yield made
    made.close()


@pytest.fixture(params=[name for name in MAKERS if name not in ("system", "python")])
def native_allocator(request: pytest.FixtureRequest) -> Iterator[NativeAllocator]:
    made = MAKERS[request.param]()
    assert isinstance(made, NativeAllocator)
    yield made
    made.close()


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run a program in a fresh interpreter; it must exit with 0 and leave stderr empty."""

    def run(program: str, *arguments: str, timeout: float = 60, prefix: str = "") -> str:
        code = textwrap.dedent(prefix) + textwrap.dedent(program)
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
        return done.stdout

    return run
