"""Whose seconds are whose."""

import resource
from types import SimpleNamespace

import pytest

import bigmem
from prover.pipeline import usage


@pytest.mark.parametrize(("elsewhere", "faults"), [(4.0, 3.0), (9.0, 0.0), (-1.0, 7.0)])
def test_reclaiming_counts_by_the_processor_where_it_is_taken_from_the_kernels_time(
    monkeypatch, elsewhere, faults
):
    """Workers that wait for a processor take nothing from the program's own faults."""
    stats = iter(
        bigmem.AllocatorStats(allocate_seconds=a, release_seconds=r, reclaim_seconds=c)
        for a, r, c in ((1.0, 1.0, 1.0), (2.0, 3.0, 9.0))
    )
    kernel, workers = iter((5.0, 15.0)), iter((2.0, 2.0 + elsewhere))
    monkeypatch.setattr(
        resource,
        "getrusage",
        lambda _: SimpleNamespace(ru_stime=next(kernel), ru_minflt=0, ru_majflt=0),
    )
    monkeypatch.setattr(usage, "processor_seconds", lambda _: next(workers))
    meter = usage.Meter(SimpleNamespace(stats=lambda: next(stats)))
    found = meter.stop()
    assert (found.map_s, found.release_s, found.reclaim_s) == (1.0, 2.0, 8.0)
    assert found.fault_s == faults
