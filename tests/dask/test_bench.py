"""The bench of the plugin, at sizes whose figures mean nothing."""

import argparse

import pytest

from bench import dask as bench
from bench import machine

from .conftest import same_environment

OPTIONS = argparse.Namespace(side=256, chunks=20, limit="1GiB", rounds=1)


@pytest.mark.parametrize(
    ("way", "workload"), [("recycle", "spectrum"), ("Dask, heap not trimmed", "chunks")]
)
def test_a_run_finds_what_numpy_would(
    way: str, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "REST_SECONDS", 0.0)
    with same_environment():
        found = bench.run_once(way, workload, OPTIONS)
    # By Parseval, the mean power of a transform of n unit normals is n; the mean of randoms is 1/2.
    expected = bench.STEPS * 256 if workload == "spectrum" else 20 * bench.CHUNK_BYTES / 8 / 2
    assert found["result"] == pytest.approx(expected, rel=0.02)
    assert found["wall_s"] > 0
    assert found["faults"] > 0
    assert found["peak_bytes"] > found["old_bytes"] > 0


def test_the_page_has_a_row_for_each_way_in_each_regime() -> None:
    one = {
        "wall_s": 2.0, "kernel_s": 1.0, "faults": 1e6, "peak_bytes": 1 << 30,
        "most_unmanaged_bytes": 1 << 29, "after_bytes": 1 << 28, "old_bytes": 1 << 27,
    }  # fmt: skip
    ways = {way: {**one, "wall_s": 2.0 + n} for n, way in enumerate(bench.WAYS)}
    found = {workload: dict.fromkeys(machine.REGIMES, ways) for workload in bench.WORKLOADS}
    page = bench.markdown(found, OPTIONS)
    row = "| 2.00 | 1.00 | 1.00 | 1,000,000 | 1,024 | 512 | 256 | 128 |"
    assert page.count(row) == 4
    for regime in machine.REGIMES:
        for way in bench.WAYS:
            assert page.count(f"\n| {regime} | {way} |") == 2
