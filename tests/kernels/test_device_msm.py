"""The device's multi-scalar multiplication, every kernel of it, run on the host."""

import emulated
import numpy as np
import pytest
from msm_cases import on_cpu, on_device

from bench import gpu_inputs
from prover import curves
from prover.backends.cuda import msm
from prover.backends.cuda.windows import MAX_WIDTH, Windows, possible
from prover.backends.cuda.workspace import Workspace


@pytest.fixture
def check(libraries, model, group):
    curve = curves.CURVES[model.name]
    kernels = libraries[model.name, group]
    rng = np.random.default_rng(7)
    few = gpu_inputs.few_points(curve, group, rng)

    def run(n, points_kind, scalars_kind):
        points = gpu_inputs.pick_points(few, n, points_kind, rng)
        scalars = gpu_inputs.scalars(curve, n, scalars_kind, rng)
        result = on_device(kernels, emulated.aligned, curve, group, points, scalars)
        assert np.array_equal(result, on_cpu(curve, group, points, scalars))

    return run


@pytest.mark.parametrize("scalars", gpu_inputs.SCALARS)
def test_scalars_of_every_kind(check, scalars):
    check(40, "infinite", scalars)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_points(check, n):
    check(n, "distinct", "random")


@pytest.mark.parametrize(
    ("points", "scalars"), [("one", "equal"), ("inverse", "bytes"), ("distinct", "mix 35/35/30")]
)
def test_buckets_of_every_length(check, points, scalars):
    """Buckets that many threads share, and points that meet themselves and their negatives."""
    check(600, points, scalars)


class AsOnH200(emulated.EmulatedKernels):
    """With as many blocks at once."""

    def resident_blocks(self, name, threads):
        return 132 * 4


@pytest.mark.parametrize("scalars", ["random", "one", "equal", "mix 35/35/30"])
@pytest.mark.parametrize("n", [1, 9, 300])
def test_few_points_on_a_large_device(libraries, model, group, n, scalars):
    """The workspace grows with them, and holds what any scalars want."""
    curve, rng = curves.CURVES[model.name], np.random.default_rng(n)
    kernels = AsOnH200(emulated.Path(libraries[model.name, group]._library._name))
    points = gpu_inputs.pick_points(gpu_inputs.few_points(curve, group, rng), n, "distinct", rng)
    values = gpu_inputs.scalars(curve, n, scalars, rng)
    result = on_device(kernels, emulated.aligned, curve, group, points, values)
    assert np.array_equal(result, on_cpu(curve, group, points, values))


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("curve", curves.CURVES.values(), ids=str)
def test_no_scalars_want_more_than_the_workspace_holds(libraries, curve, group):
    kernels = AsOnH200(emulated.Path(libraries[curve.name, group]._library._name))
    for n in (1, 2, 31, 1024, 5000, 1 << 14, 1 << 20):
        room = msm.add_workspace(curve, group, n, kernels)
        for dense in {0, 1, n // 9, n // 2, n - 1, n} | {1 << k for k in range(21) if 1 << k < n}:
            windows = msm.choose_windows(curve, dense)
            wanted = Workspace()
            blocks = msm._blocks(kernels, windows.count * dense + n - dense)
            msm._AddBuffers(wanted, windows, 2 * curve.point_bytes(group), blocks)
            assert wanted.used <= room
    assert msm.add_workspace(curve, group, 1024, kernels) < 12 << 20
    assert msm.add_workspace(curve, group, 1 << 20, kernels) > 40 << 20


@pytest.fixture
def sorting(libraries):
    return libraries["bn128", 1]


@pytest.mark.parametrize(
    ("width", "n", "kind"),
    [
        (2, 70, "random"),
        (8, 300, "edges"),
        (11, 300, "equal"),
        (12, 300, "mix 35/35/30"),
        (16, 8500, "bytes"),
        (21, 8500, "random"),
    ],
)
def test_entries_are_every_digit_in_order_of_bucket(sorting, monkeypatch, width, n, kind):
    """One tile a window and two, one pass and two."""
    curve = curves.BN254
    windows = Windows(curve.r.bit_length(), -(-curve.r.bit_length() // width))
    monkeypatch.setattr(msm, "choose_windows", lambda *_: windows)
    scalars = gpu_inputs.scalars(curve, n, kind, np.random.default_rng(width))
    room = emulated.aligned(np.full(msm.sort_workspace(curve, n), 0xA5, np.uint8))
    result = msm.sort_scalars(sorting, curve, emulated.aligned(scalars), room)
    count = int(result.count[:4].view(np.uint32)[0])
    entries = result.entries[: 8 * count].view(np.uint64)
    buckets, points = (entries >> np.uint64(32)).astype(int), entries.astype(np.uint32)
    assert (np.diff(buckets) >= 0).all()
    sums = [0] * n
    for bucket, point in zip(buckets.tolist(), points.tolist(), strict=True):
        window, digit = divmod(bucket, windows.buckets)
        value = (digit + 1) << (window * windows.bits // windows.count)
        sums[point & 0x7FFFFFFF] += -value if point >> 31 else value
    for point in result.ones[: 4 * result.ones_count].view(np.uint32).tolist():
        sums[point & 0x7FFFFFFF] += -1 if point >> 31 else 1
    values = [int.from_bytes(row.tobytes(), "little") for row in scalars]
    assert [total % curve.r for total in sums] == values


@pytest.mark.parametrize("curve", curves.CURVES.values(), ids=list(curves.CURVES))
def test_more_points_take_wider_windows(curve):
    chosen = [msm.choose_windows(curve, 1 << log) for log in range(28)]
    counts = [windows.count for windows in chosen]
    assert counts == sorted(counts, reverse=True)
    assert chosen[-1].width <= MAX_WIDTH
    for windows in possible(curve.r.bit_length()):
        assert sum(windows.passes()) == sum(windows.steps()) == windows.width - 1
        assert max(windows.passes()) <= 10
        assert len(set(windows.steps()[1:])) <= 1


@pytest.mark.parametrize("curve", curves.CURVES.values(), ids=list(curves.CURVES))
def test_workspace_for_many_serves_few(curve):
    limit = msm.sort_workspace(curve, 1 << 16)
    for dense in (0, 1, 1000, 40_000, 65_000, 1 << 16):
        windows = msm.choose_windows(curve, dense, limit, 1 << 16)
        assert windows.count >= msm.choose_windows(curve, 1 << 16).count


def test_a_workspace_too_small_is_refused():
    space = Workspace(np.empty(1000, np.uint8))
    space.take(256)
    with pytest.raises(ValueError, match="1000 bytes, not 1280"):
        space.take(1000)
