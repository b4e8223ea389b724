"""What the core's extent map does when a live extent grows or shrinks, case by case."""

from test_extent_map import HUGE, PAGE, take_block, told

from bigmem import _core

BEGIN = 1 << 30


def make_map(units: int = 8) -> "_core.ExtentMap":
    extents = _core.ExtentMap(HUGE, 10.0, PAGE)
    extents.add_region(BEGIN, units * HUGE, True)
    return extents


def test_growth_takes_the_rest_of_the_unit_first_and_leaves_one_again() -> None:
    extents = make_map(4)
    block = take_block(extents, 13)[0]
    assert extents.grow(block, 15 * PAGE, True) == 0
    assert told(extents) == [(0, 15, "live"), (15, 1, "warm"), (16, 16, "clean")]
    assert extents.grow(block, 17 * PAGE, False) is None
    assert extents.grow(block, 17 * PAGE, True) == HUGE
    assert told(extents) == [(0, 17, "live"), (17, 7, "warm"), (24, 8, "clean")]
    assert extents.fragments() == 7 * PAGE
    # The rest of a unit that was zero is zero.
    assert take_block(extents, 7) == (block + 17 * PAGE, "warm", True)
    assert extents.grow(block, 18 * PAGE, True) is None
    assert extents.grow(block, 33 * PAGE, True) is None


def test_growth_ends_within_the_unit_of_another_block() -> None:
    extents = make_map(3)
    first, second, small = (take_block(extents, pages)[0] for pages in (8, 13, 2))
    assert extents.release(second, "warm", 1.0, 1) == (second, HUGE)
    rest = [(21, 2, "live"), (23, 1, "warm")]
    assert told(extents) == [(0, 8, "live"), (8, 8, "warm"), (16, 5, "warm"), *rest]
    assert extents.grow(first, 19 * PAGE, False) == 0
    assert told(extents) == [(0, 19, "live"), (19, 2, "warm"), *rest]
    assert extents.release(first, "warm", 2.0, 2) == (first, 2 * HUGE)
    assert told(extents) == [(0, 16, "warm"), (16, 5, "warm"), *rest]
    assert extents.release(small, "warm", 3.0, 3) == (first, 3 * HUGE)


def test_a_small_block_grows_within_its_unit_alone() -> None:
    extents = make_map(3)
    take_block(extents, 10)
    small = take_block(extents, 1)[0]
    assert extents.grow(small, 6 * PAGE, True) == 0
    assert extents.grow(small, 7 * PAGE, True) is None
    assert told(extents) == [(0, 10, "live"), (10, 6, "live"), (16, 8, "clean")]


def test_a_block_shrinks_to_any_page() -> None:
    extents = make_map(4)
    block = take_block(extents, 29)[0]
    assert extents.shrink(block, 27 * PAGE, "pending", 1.0, 1) is None
    assert told(extents) == [(0, 27, "live"), (27, 5, "warm")]
    assert extents.shrink(block, 24 * PAGE, "pending", 1.0, 2) == (block + 3 * HUGE, HUGE)
    assert told(extents) == [(0, 24, "live"), (24, 8, "pending")]
    assert extents.shrink(block, 3 * PAGE, "warm", 1.0, 3) == (block + HUGE, 2 * HUGE)
    assert told(extents) == [(0, 3, "live"), (3, 5, "warm"), (8, 16, "warm"), (24, 8, "pending")]
    assert extents.fragments() == 5 * PAGE
    assert not extents.settled(2)
    assert extents.grow(block, 24 * PAGE, False) == 0
    assert extents.grow(block, 25 * PAGE, True) is None  # pending
    assert extents.release(block, "warm", 2.0, 4) == (block, 3 * HUGE)


def test_what_a_child_may_have_and_what_it_has_not_stay_apart() -> None:
    extents = make_map(4)
    block = take_block(extents, 8)[0]
    after = take_block(extents, 8)[0]
    extents.mark_shared()
    extents.release(after, "reclaiming", 1.0, 1)
    extents.finish(after, "lazy")
    assert extents.grow(block, 16 * PAGE, False) == 0
    assert extents.grow(block, 17 * PAGE, True) is None
    # Nor is what is let go recycled.
    assert extents.shrink(block, 8 * PAGE, "warm", 1.0, 2) == (after, HUGE)
    assert told(extents)[:2] == [(0, 8, "live"), (8, 8, "pending")]


def test_one_call_takes_a_bounded_number_of_pieces() -> None:
    for pieces, possible in ((64, True), (65, False)):
        extents = _core.ExtentMap(PAGE, 10.0, PAGE)
        extents.add_region(BEGIN, 100 * PAGE, True)
        blocks = [take_block(extents, 1)[0] for _ in range(1 + pieces)]
        for serial, block in enumerate(blocks[1:]):
            # Too far apart in age to merge.
            extents.release(block, "warm", 3.0 * serial, serial)
        assert len(told(extents)) == pieces + 2
        grown = extents.grow(blocks[0], (1 + pieces) * PAGE, True)
        assert grown == (0 if possible else None)
        assert len(told(extents)) == (2 if possible else pieces + 2)


def test_resizing_leaves_the_nodes_that_ends_may_need() -> None:
    extents = make_map(400)
    blocks = [take_block(extents, 8)[0] for _ in range(100)]
    for block in blocks[::2]:
        extents.release(block, "warm", 1.0, 1)
    for block in blocks[1::2]:
        extents.shrink(block, 7 * PAGE, "warm", 1.0, 1)
        extents.grow(block, 8 * PAGE, True)
    for block in blocks[1:-1:2]:
        assert extents.grow(block, 13 * PAGE, False) == 0
    spare, reserved = extents.nodes()
    assert spare >= reserved == 49
    for block in blocks[1:-1:2]:
        extents.shrink(block, 3 * PAGE, "warm", 1.0, 1)
    spare, reserved = extents.nodes()
    assert spare >= reserved == 0
