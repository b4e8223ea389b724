"""NumPy's own tests of what handles data memory, with each of its allocations on a block."""

from collections.abc import Callable

import pytest

# Which of a module's tests, as pytest's -k has it; `make test-interop` runs them all.
PARTS = {
    "_core.tests.test_mem_policy": "",
    "_core.tests.test_multiarray": "TestResize or TestSizeOf or TestIO or TestFromBuffer"
    " or TestPickling or TestMethods or TestLexsort or largearrays or TestTake or TestAssignment"
    " or TestNewBufferProtocol or Writeback or TestZeroSize",
    "_core.tests.test_numeric": "FromIter or Resize or Like",
    "lib.tests.test_loadtxt": "",
    "lib.tests.test_format": "",
}


@pytest.mark.parametrize("module", PARTS)
def test_numpys_own_tests_pass(module: str, run_suite: Callable[..., str]) -> None:
    options = ("--bigmem-allocator", "recycle", "--bigmem-min-bytes", "1")
    run_suite(*options, "-k", PARTS[module], "--pyargs", f"numpy.{module}")
