"""Pinned memory keeps what every allocator promises."""

import pytest

from bigmem.cuda import PinnedAllocator
from bigmem.testing import AccountingContract, AllocatorContract, PoolContract


class TestPinned(AllocatorContract, AccountingContract):
    pass


class TestPinnedPool(PoolContract):
    @pytest.fixture
    def allocator(self, native_allocator: PinnedAllocator) -> PinnedAllocator:
        return native_allocator
