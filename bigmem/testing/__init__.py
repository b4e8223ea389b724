"""The contract of allocators as tests, to be run over allocators of your own.

Inherit from the classes that apply, and give a fixture called ``allocator``, made anew for each
test, in the class, its module or a conftest.py::

    import bigmem.testing
    import pytest

    from mine import MyAllocator


    class TestMyAllocator(bigmem.testing.AllocatorContract):
        @pytest.fixture
        def allocator(self):
            with MyAllocator() as allocator:
                yield allocator

`AllocatorContract` holds for every allocator, `AccountingContract` for those whose `stats` count,
`PoolContract` for those that keep released memory and count it. A parametrized fixture runs them
over several policies. What is built in passes these same classes; importing them takes pytest.
"""

try:
    import pytest
except ImportError:
    raise ImportError("bigmem.testing needs pytest, which is missing: pip install pytest") from None

# Before they are imported: a failing assertion then shows its values.
pytest.register_assert_rewrite(f"{__name__}.contract", f"{__name__}.accounts")

from .accounts import AccountingContract, PoolContract  # noqa: E402
from .contract import AllocatorContract  # noqa: E402

__all__ = ["AccountingContract", "AllocatorContract", "PoolContract"]
