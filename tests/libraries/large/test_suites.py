"""Tests that the packages bring along pass while NumPy's arrays come from bigmem."""

from collections.abc import Callable

import pytest

Run = Callable[..., str]

pytestmark = pytest.mark.timeout(1200)

NUMPY = ["_core", "fft", "lib", "linalg", "ma", "matrixlib", "polynomial", "random"]
OTHERS = [
    "scipy.fft.tests.test_basic",
    "scipy.io.matlab.tests.test_mio",
    "scipy.ndimage.tests.test_filters",
    "scipy.sparse.tests.test_csr",
    "scipy.spatial.tests.test_kdtree",
    "pandas.tests.arrays.numpy_",
    "pandas.tests.copy_view",
    "pandas.tests.groupby.test_reductions",
    "pandas.tests.reshape.merge.test_merge",
    "pandas.tests.test_sorting",
    "pandas.tests.window.test_rolling",
    "sklearn.neighbors.tests.test_kd_tree",
    "sklearn.preprocessing.tests.test_data",
    "sklearn.utils.tests.test_validation",
    "sklearn.tests.test_pipeline",
    "pyarrow.tests.test_array",
    "pyarrow.tests.test_io",
    "pyarrow.tests.test_pandas",
]


@pytest.mark.parametrize("package", NUMPY)
def test_numpys_tests_pass_with_every_array_on_a_block(package: str, run_suite: Run) -> None:
    options = ("--bigmem-allocator", "recycle", "--bigmem-min-bytes", "1")
    print(run_suite(*options, "--pyargs", f"numpy.{package}"))


def test_numpys_tests_pass_under_bigmem_run(run_suite: Run) -> None:
    command = ("-m", "bigmem", "run", "--allocator", "recycle")
    print(run_suite("--pyargs", "numpy._core", prefix=command))


@pytest.mark.parametrize("allocator_name", ["system", "mapped", "dontneed", "deferred"])
@pytest.mark.parametrize("module", ["_core.tests.test_numeric", "lib.tests.test_loadtxt"])
def test_some_do_with_each_allocator(module: str, allocator_name: str, run_suite: Run) -> None:
    options = ("--bigmem-allocator", allocator_name, "--bigmem-min-bytes", "1")
    print(run_suite(*options, "--pyargs", f"numpy.{module}"))


@pytest.mark.parametrize("module", OTHERS)
def test_those_of_other_packages_pass(module: str, run_suite: Run) -> None:
    options = ("--bigmem-allocator", "recycle", "--bigmem-min-bytes", "1KiB")
    print(run_suite(*options, "--pyargs", module))
