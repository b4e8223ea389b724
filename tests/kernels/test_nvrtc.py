"""The kernels compile for the GPU: NVRTC needs no GPU, only its library (a wheel)."""

from pathlib import Path

import pytest

from bench import kernel_resources
from prover.backends.cuda import program

KERNELS = Path(__file__).parents[2] / "prover" / "kernels"
HEADERS = sorted(path.name for path in KERNELS.glob("*.cuh"))

# One kernel that uses everything a header offers, for a curve and a group.
GROUP_PROGRAM = """
#include "{curve_header}"
#include "msm.cuh"
using Curve = prover::{curve}<prover::Portable<prover::u32>>;
using F = Curve::{coordinate};
extern "C" __global__ void group(const prover::Affine<F>* p, prover::Xyzz<F>* out, F* scratch) {{
  prover::Xyzz<F> sum = prover::Xyzz<F>::from_affine(p[0]);
  sum = sum + p[1];
  sum = sum + sum;
  sum = sum + prover::Xyzz<F>::twice(p[2]);
  sum = sum + prover::multiply(p[3], Curve::Fr::modulus());
  F inverses[2] = {{sum.x, sum.y}};
  prover::invert_batch(inverses, scratch, 2);
  prover::Affine<F> affine = sum.to_affine();
  if (Curve::on_curve(affine)) out[0] = -sum;
  out[1] = prover::Xyzz<F>::from_affine({{inverses[0], inverses[1]}});
  out[2] = prover::weighted_sum<F>(3, [&](prover::u32 i, prover::Xyzz<F>& sum) {{
    sum = sum + p[i];
  }});
}}
"""

SCALAR_PROGRAM = """
#include "{curve_header}"
#include "msm.cuh"
#include "ntt.cuh"
#include "sparse.cuh"
using F = prover::{curve}<prover::Portable<prover::u32>>::Fr;
extern "C" __global__ void scalar(F* x, F* twiddles, short* digits, const prover::Term<F>* term) {{
  prover::split_butterfly(x[0], x[1], prover::inverse_twiddle(twiddles, 3));
  prover::merge_butterfly(x[0], x[1], twiddles[2]);
  prover::plain_butterfly(x[0], x[1]);
  x[2] = prover::root_of_unity<F>(5) + term->times(x[3].value);
  const auto windows = prover::Windows<F>::of_width(13);
  prover::make_small<F>(x[4].value);
  prover::recode<F>(x[4].value, windows, [&](int w, int digit) {{ digits[w] = short(digit); }});
}}
"""

# In a tenth of the time.
NOT_OPTIMISED = "--device-debug"

CURVES = {"Bn128": "bn128.cuh", "Bls12381": "bls12381.cuh"}


OPTIONS = kernel_resources.options("sm_90")


@pytest.fixture(scope="module")
def compiler():
    return kernel_resources.wheel()


def compile_for_gpu(compiler, source: str, *more_options: str) -> None:
    """Compile to machine code, which the assembler tells of, or fail with the compiler's log."""
    log = compiler(source, [*OPTIONS, *more_options])
    assert log.count("Compiling entry function") == source.count("__global__") > 0


@pytest.mark.parametrize("header", HEADERS)
def test_header_stands_alone(compiler, header):
    compile_for_gpu(compiler, f'#include "{header}"\n__global__ void f() {{}}')


@pytest.mark.parametrize("coordinate", ["Fq", "Fq2"])
@pytest.mark.parametrize("curve", CURVES)
def test_group_instantiations(compiler, curve, coordinate):
    source = GROUP_PROGRAM.format(curve=curve, curve_header=CURVES[curve], coordinate=coordinate)
    compile_for_gpu(compiler, source, NOT_OPTIMISED)


@pytest.mark.parametrize("curve", CURVES)
def test_scalar_instantiations(compiler, curve):
    compile_for_gpu(compiler, SCALAR_PROGRAM.format(curve=curve, curve_header=CURVES[curve]))


@pytest.mark.parametrize("curve", program.CLASSES)
def test_kernels_of_the_cuda_backend(compiler, curve):
    source = program.source_of(curve, program.HERE / "scalars.cu")
    compile_for_gpu(compiler, source, NOT_OPTIMISED)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("curve", program.CLASSES)
def test_kernel_of_keys(compiler, curve, group):
    source = program.source_of(curve, program.HERE / "fixed_base.cu", group)
    compile_for_gpu(compiler, source, NOT_OPTIMISED)


@pytest.mark.timeout(900)  # a minute of a processor
@pytest.mark.parametrize("file", ["sort.cu", "msm.cu"])
def test_no_kernel_of_sums_in_g1_spills(compiler, file):
    """On an H200. Those of G2 do."""
    found = dict(kernel_resources.resources(compiler, "sm_90", file))
    assert len(found) == (2 if file == "sort.cu" else 4)
    for title, kernels in found.items():
        entries = (program.HERE / file).read_text().count("__global__ void")
        assert len(kernels) == entries
        assert all(0 < kernel.registers <= 255 for kernel in kernels)
        if not title.endswith("G2"):
            assert not [kernel.name for kernel in kernels if kernel.spilled]


def test_what_does_not_compile_is_told_in_the_compilers_words(compiler):
    with pytest.raises(RuntimeError, match='"undefined" is undefined'):
        compiler("__global__ void f() { undefined(); }", OPTIONS)
