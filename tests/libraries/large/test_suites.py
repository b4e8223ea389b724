"""Tests that the packages bring along pass while NumPy's arrays come from bigmem."""

from collections.abc import Callable

import pytest

Run = Callable[..., str]

pytestmark = pytest.mark.timeout(900)

NUMPY = [
    "_core.tests.test_array_coercion",
    "_core.tests.test_casting_unittests",
    "_core.tests.test_dlpack",
    "_core.tests.test_dtype",
    "_core.tests.test_einsum",
    "_core.tests.test_function_base",
    "_core.tests.test_indexing",
    "_core.tests.test_item_selection",
    "_core.tests.test_mem_overlap",
    "_core.tests.test_mem_policy",
    "_core.tests.test_memmap",
    "_core.tests.test_multiarray",
    "_core.tests.test_multithreading",
    "_core.tests.test_nditer",
    "_core.tests.test_numeric",
    "_core.tests.test_records",
    "_core.tests.test_regression",
    "_core.tests.test_shape_base",
    "_core.tests.test_strings",
    "_core.tests.test_ufunc",
    "_core.tests.test_umath",
    "fft",
    "lib.tests.test_arraypad",
    "lib.tests.test_format",
    "lib.tests.test_function_base",
    "lib.tests.test_io",
    "lib.tests.test_loadtxt",
    "linalg.tests.test_linalg",
    "ma.tests.test_core",
    "random.tests.test_generator_mt19937",
]
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


@pytest.mark.parametrize("module", NUMPY)
def test_numpys_tests_pass_with_every_array_on_a_block(module: str, run_suite: Run) -> None:
    options = ("--bigmem-allocator", "recycle", "--bigmem-min-bytes", "1")
    print(run_suite(*options, "--pyargs", f"numpy.{module}"))


def test_numpys_tests_pass_under_bigmem_run(run_suite: Run) -> None:
    command = ("-m", "bigmem", "run", "--allocator", "recycle")
    modules = [f"numpy.{module}" for module in NUMPY if module.startswith("_core")]
    print(run_suite("--pyargs", *modules, prefix=command))


@pytest.mark.parametrize("allocator_name", ["system", "mapped", "dontneed", "deferred"])
@pytest.mark.parametrize("module", ["_core.tests.test_numeric", "lib.tests.test_loadtxt"])
def test_some_do_with_each_allocator(module: str, allocator_name: str, run_suite: Run) -> None:
    options = ("--bigmem-allocator", allocator_name, "--bigmem-min-bytes", "1")
    print(run_suite(*options, "--pyargs", f"numpy.{module}"))


@pytest.mark.parametrize("module", OTHERS)
def test_those_of_other_packages_pass(module: str, run_suite: Run) -> None:
    options = ("--bigmem-allocator", "recycle", "--bigmem-min-bytes", "1KiB")
    print(run_suite(*options, "--pyargs", module))
