"""What the backend's kernels take of this GPU, as the NVRTC that is used here compiles them."""

import pytest

from bench import kernel_resources
from prover.backends.cuda.program import HERE
from prover.curves import CURVES


def test_no_kernel_of_g1_spills(resources_told):
    compiler, architecture = kernel_resources.of_cupy()
    found = dict(kernel_resources.resources(compiler, architecture))
    for title, kernels in found.items():
        resources_told.extend(kernel_resources.lines(title, kernels))
    assert all(found.values())
    files = {path.name for path in HERE.glob("*.cu")}
    assert {title.split()[0] for title in found} == files
    g1 = {title: kernels for title, kernels in found.items() if title.endswith(" G1")}
    assert len(g1) == 2 * len(CURVES)
    if architecture != "sm_90":  # with some versions of NVRTC an accumulation spills on sm_100
        pytest.skip(f"registers are promised for sm_90; the table tells of {architecture}")
    spilled = {(t, k.name): k.spilled for t, kernels in g1.items() for k in kernels if k.spilled}
    assert not spilled
