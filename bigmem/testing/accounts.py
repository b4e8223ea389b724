"""What allocators promise that count, and those that keep memory."""

from .. import osmem
from ..allocator import Allocator
from .blocks import SIZES, Event, fill, holds, in_time


class AccountingContract:
    """For allocators whose `stats` count; those of others stay zero.

    Sizes count as what they take, rounded up to 4 KiB.
    """

    def test_stats_count_what_happened(self, allocator: Allocator) -> None:
        blocks = [allocator.allocate(8 << 20) for _ in range(3)]
        stats = allocator.stats()
        assert stats.live == stats.peak_live == 24 << 20
        assert (stats.allocations, stats.releases) == (3, 0)
        assert stats.allocate_seconds > 0
        blocks.clear()
        assert allocator.flush(30)
        allocator.trim()
        stats = allocator.stats()
        assert stats.live == 0
        assert stats.peak_live == 24 << 20
        assert stats.peak_resident >= 24 << 20
        assert stats.reclaimed == 24 << 20
        assert stats.releases == 3
        assert stats.release_seconds > 0
        assert stats.resident == 0


class PoolContract:
    """For allocators that keep released memory, waiting or warm, and count it."""

    def test_flush_leaves_nothing_pending(self, allocator: Allocator) -> None:
        blocks = [allocator.allocate(size) for size in SIZES for _ in range(3)]
        for block in blocks:
            fill(block, 1)
        del block, blocks
        assert allocator.flush(30) is True
        stats = allocator.stats()
        assert (stats.live, stats.pending) == (0, 0)
        assert stats.allocations == stats.releases == 3 * len(SIZES)
        # Where memory is short, what is warm by now may be on its way back.
        assert in_time(lambda: allocator.stats().reclaiming == 0)

    def test_a_fenced_block_is_pending(self, allocator: Allocator) -> None:
        event = Event()
        block = allocator.allocate(3 << 20)
        block.fence(event)
        block.release()
        assert allocator.stats().pending >= 3 << 20
        event.is_done = True
        assert allocator.flush(30)
        assert allocator.stats().pending == 0

    def test_trim_gives_every_idle_byte_back(self, allocator: Allocator) -> None:
        before = osmem.resident_bytes()
        kept = allocator.allocate(2 << 20)  # leaves nothing of a huge page
        fill(kept, 7)
        blocks = [allocator.allocate(size) for size in (48 << 20, 11 << 20, 300_000)]
        for block in blocks:
            fill(block, 1)
        del block, blocks
        allocator.trim()
        stats = allocator.stats()
        assert stats.pending == stats.reclaiming == stats.warm == stats.lazy == 0
        assert stats.live >= kept.nbytes
        assert stats.reclaimed >= 59 << 20
        assert osmem.resident_bytes() - before < 16 << 20
        assert holds(kept, 7)
        assert allocator.trim() == 0
