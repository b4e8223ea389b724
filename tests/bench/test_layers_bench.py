"""The bench of layers, at a size whose figures mean nothing."""

import pytest

import bigmem
from bench import layers, machine


def test_every_contender_is_timed_in_both_regimes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "SERIES", 2)
    size = 8 << 20
    results = {regime: layers.run_regime(regime, size, rounds=3) for regime in machine.REGIMES}
    content = {"size": size, "rounds": 3, "results": results, "overhead_s": layers.overhead()}
    for found in results.values():
        assert list(found) == list(layers.contenders())
        for one in found.values():
            (outside,) = one["layers"]
            (inside,) = outside["layers"]
            assert (outside["name"], inside["name"]) == ("outside", "inside")
            assert outside["calls"] == inside["calls"] == 3
            assert outside["wall_s"] > inside["wall_s"] == outside["inner_s"] > 0
    page = layers.markdown(content)
    assert results["4 KiB"]["numpy"]["table"] in page
    for regime in machine.REGIMES:
        for name in layers.contenders():
            assert f"\n| {regime} | {name} |" in page


def test_the_function_that_is_timed_touches_all_of_its_memory() -> None:
    allocator = bigmem.make("mapped")
    assert layers.total(allocator, 8 << 20) == layers.PIECES
    stats = allocator.stats()
    assert (stats.allocations, stats.releases) == (layers.PIECES, layers.PIECES)
    assert stats.peak_live == 8 << 20
