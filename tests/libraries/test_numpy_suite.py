"""NumPy's own tests of what handles data memory, with each of its allocations on a block."""

from collections.abc import Callable

import pytest

# Which of a module's tests: those of many seconds are left to `make test-interop`.
PARTS = {
    "_core.tests.test_mem_policy": "",
    # resize, fromstring, fromfile, sort, argsort, take, put, pickling and much else
    "_core.tests.test_multiarray": "not sort_int and not sort_float and not partition_int"
    " and not partition_fp and not count_nonzero_all",
    "_core.tests.test_numeric": "FromIter or Resize or Like",
    "lib.tests.test_loadtxt": "",
    "lib.tests.test_format": "",
}


@pytest.mark.parametrize("module", PARTS)
def test_numpys_own_tests_pass(module: str, run_suite: Callable[..., str]) -> None:
    options = ("--bigmem-allocator", "recycle", "--bigmem-min-bytes", "1")
    run_suite(*options, "-k", PARTS[module], "--pyargs", f"numpy.{module}")
