"""The pace at which the extent map gives warm memory back."""

from bigmem import _core

PAGE = 4096
# Eighths of seconds and whole pages keep every sum of products exact in double precision.
TICK = 0.125


def warm_map(decay: float, sizes: list[int], released: list[float]) -> "_core.ExtentMap":
    extents = _core.ExtentMap(PAGE, decay)
    extents.add_region(1 << 30, 2 * sum(sizes), True)
    begins = []
    for size in sizes:
        found = extents.allocate(size, 64, True)
        assert found is not None
        begins.append(found[0])
    for serial, (begin, now) in enumerate(zip(begins, released, strict=True), 1):
        extents.release(begin, "warm", now, serial)
    return extents


def drain_due(extents: "_core.ExtentMap", now: float, chunk: int) -> int:
    total = 0
    while (taken := extents.take("due", now, chunk)) is not None:
        extents.finish(taken[0], "clean_zero")
        total += taken[1]
    return total


def test_warm_memory_goes_back_evenly_in_the_second_half_of_the_decay_time() -> None:
    size, chunk = 1024 * PAGE, 4 * PAGE
    extents = warm_map(8.0, [size], [0.0])
    assert drain_due(extents, 3.875, chunk) == 0
    assert drain_due(extents, 4.0, chunk) == 0
    gone = 0
    for tick in range(1, 33):
        now = 4.0 + tick * TICK
        gone += drain_due(extents, now, chunk)
        even = size * (now - 4.0) / 4.0
        assert even - chunk <= gone <= even + chunk
    assert gone == size


def test_many_small_extents_decay_as_one_large_one_does() -> None:
    sizes = [PAGE] * 512
    extents = warm_map(8.0, sizes, [0.125 * (i % 2) for i in range(512)])
    gone = [drain_due(extents, 4.0 + tick * TICK, 64 * PAGE) for tick in range(34)]
    assert sum(gone) == sum(sizes)
    assert max(gone) <= sum(sizes) / 4


def test_steady_release_is_given_back_at_the_rate_it_comes() -> None:
    size, chunk = 64 * PAGE, 16 * PAGE
    extents = _core.ExtentMap(PAGE, 8.0)
    extents.add_region(1 << 30, 512 * size, True)
    blocks = [extents.allocate(size, 64, True) for _ in range(400)]
    returned = []
    for tick, block in enumerate(blocks):
        assert block is not None
        extents.release(block[0], "warm", tick * TICK, tick + 1)
        returned.append(drain_due(extents, tick * TICK, chunk))
    # Half the decay time nothing, then it settles: each tick gives back about what it took.
    assert sum(returned[:32]) == 0
    assert all(size - chunk <= amount <= size + chunk for amount in returned[200:])


def test_busy_neighbours_do_not_keep_an_idle_extent_warm() -> None:
    extents = _core.ExtentMap(PAGE, 8.0)
    extents.add_region(1 << 30, 1024 * PAGE, True)
    large = extents.allocate(512 * PAGE, 64, True)
    small = extents.allocate(PAGE, 64, True)
    assert large is not None
    assert small is not None
    extents.release(large[0], "warm", 0.0, 1)
    gone = 0
    # The small neighbour is released over and over, as a busy program would.
    for tick in range(1, 100):
        now = tick * TICK
        extents.release(small[0], "warm", now, tick + 1)
        gone += drain_due(extents, now, 64 * PAGE)
        again = extents.allocate(PAGE, 64, True)
        assert again is not None
        small = again
    assert gone >= 500 * PAGE
