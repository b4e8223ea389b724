"""Memory limits in a real control group, where one can be made."""

from collections.abc import Callable, Iterator

import pytest
from memory_group import JOIN, arguments_of, memory_group

from bigmem.pressure import Group

Run = Callable[..., str]
MIB = 1 << 20

PREFIX = (
    JOIN
    + """
import numpy as np
import bigmem
from bigmem import pressure
MIB = 1 << 20
assert pressure.find_groups()[0].directory == group, pressure.find_groups()
"""
)


@pytest.fixture
def group() -> Iterator[Group]:
    """A memory control group of our own, with a limit of 768 MiB."""
    with memory_group(768 * MIB) as made:
        yield made


ALLOCATORS = {
    "deferred": "bigmem.make('deferred')",
    "recycle": "bigmem.make('recycle')",
    "dontneed": "bigmem.make('dontneed')",
    "mapped-deferred": "bigmem.MappedAllocator(release=bigmem.Deferred())",
}


@pytest.mark.parametrize("sizes", [(512,), (300, 512, 420)], ids=["equal", "alternating"])
@pytest.mark.parametrize("name", ALLOCATORS)
def test_a_loop_larger_than_the_group_in_all_is_never_killed(
    run_python: Run, group: Group, name: str, sizes: tuple[int, ...]
) -> None:
    run_python(
        f"""
        allocator = {ALLOCATORS[name]}
        assert pressure.limit() == 768 * MIB
        for step in range(20):
            array = bigmem.empty({sizes}[step % {len(sizes)}] * MIB, np.uint8, allocator=allocator)
            array.fill(step)
            del array
        """,
        *arguments_of(group),
        prefix=PREFIX,
        timeout=120,
    )


def test_a_share_follows_the_limit_of_the_group(run_python: Run, group: Group) -> None:
    run_python(
        """
        budget = bigmem.Budget("80%", timeout=0.1)
        assert budget.limit == 768 * MIB * 8 // 10
        allocator = bigmem.ArenaAllocator(
            pages=bigmem.AnonymousPages(huge="never"), budget=budget,
            release=bigmem.Recycle(decay=1000))
        kept = allocator.allocate(200 * MIB)
        set_limit(500 * MIB)
        assert budget.limit == 400 * MIB
        # The allocation itself finds out, without anybody asking for the limit.
        set_limit(1000 * MIB)
        block = allocator.allocate(500 * MIB)
        assert budget.limit == 800 * MIB
        block.release()
        assert allocator.stats().warm == 500 * MIB
        set_limit(400 * MIB)
        import time
        time.sleep(1.1)
        small = allocator.allocate(1 * MIB)
        assert budget.used <= budget.limit == 320 * MIB
        try:
            allocator.allocate(300 * MIB)
        except bigmem.OutOfMemory as error:
            assert "budget of 320 MiB" in str(error), error
        else:
            raise AssertionError("more than the limit")
        """,
        *arguments_of(group),
        prefix=PREFIX,
    )
