"""The collector, judged by the text format as Prometheus's own parser reads it."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import bigmem
from bigmem.exporters.prometheus import Collector

MIB = 1 << 20


class Scraped:
    """What a scrape brings, as text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(Collector())

    def families(self) -> dict[str, str]:
        """The type of each metric, by name."""
        text = generate_latest(self.registry).decode()
        return {family.name: family.type for family in text_string_to_metric_families(text)}

    def of(self, allocator: str) -> dict[str, float]:
        """The values of one allocator, by the name of the sample."""
        text = generate_latest(self.registry).decode()
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels == {"allocator": allocator}
        }


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    yield Scraped()
    gc.collect()


def test_every_field_is_a_metric_with_its_unit_and_type(scraped: Scraped) -> None:
    bigmem.SystemAllocator(name="test of types").close()
    keeper = bigmem.SystemAllocator(name="test of fields")
    stems = {name.removeprefix("bigmem_").removesuffix("_bytes") for name in scraped.families()}
    assert stems == {field.name for field in fields(bigmem.AllocatorStats)}
    for name, kind in scraped.families().items():
        counted = not any(
            name.startswith(f"bigmem_{state}_bytes")
            for state in (
                "live", "pending", "reclaiming", "warm", "lazy", "clean",
                "peak_live", "peak_resident",
            )
        )  # fmt: skip
        assert kind == ("counter" if counted else "gauge"), name
    samples = scraped.of(keeper.name)
    for name in ("bigmem_live_bytes", "bigmem_reclaimed_bytes_total", "bigmem_allocations_total",
                 "bigmem_release_seconds_total", "bigmem_wait_seconds_total"):  # fmt: skip
        assert name in samples
    assert len(samples) == len(fields(bigmem.AllocatorStats))


def test_the_values_are_the_stats(scraped: Scraped) -> None:
    arena = bigmem.ArenaAllocator(name='test "of" values\\\n')
    block = arena.allocate(4 * MIB)
    bigmem.ones(MIB, allocator=arena)
    found, stats = scraped.of(arena.name), arena.stats()
    assert found["bigmem_live_bytes"] == stats.live == 4 * MIB
    assert found["bigmem_warm_bytes"] == stats.warm == 8 * MIB
    assert found["bigmem_allocations_total"] == stats.allocations == 2
    assert found["bigmem_allocate_seconds_total"] == stats.allocate_seconds > 0
    del block


def test_a_name_that_is_no_text_does_not_end_the_scrape(scraped: Scraped) -> None:
    keeper = bigmem.SystemAllocator(name="test of \udc80")
    block = keeper.allocate(MIB)
    assert scraped.of("test of \\udc80")["bigmem_allocations_total"] == 1
    del block


@pytest.mark.parametrize("end", ["close", "forget"])
def test_counters_never_fall_when_an_allocator_goes(scraped: Scraped, end: str) -> None:
    def use(times: int) -> bigmem.Allocator:
        arena = bigmem.ArenaAllocator(name=f"test of {end}")
        for _ in range(times):
            arena.allocate(MIB)
        return arena

    arena = use(3)
    assert scraped.of(f"test of {end}")["bigmem_allocations_total"] == 3
    if end == "close":
        arena.close()
    else:
        del arena
        gc.collect()
    after = scraped.of(f"test of {end}")
    assert after["bigmem_allocations_total"] == after["bigmem_releases_total"] == 3
    assert after["bigmem_clean_bytes"] == after["bigmem_peak_live_bytes"] == 0
    another = use(2)
    for _ in range(2):
        assert scraped.of(f"test of {end}")["bigmem_allocations_total"] == 5
    assert scraped.of(f"test of {end}")["bigmem_clean_bytes"] == another.stats().clean > 0


def test_an_allocator_whose_stats_fail_takes_no_other_along(
    scraped: Scraped, caplog: pytest.LogCaptureFixture
) -> None:
    class Moody(bigmem.SystemAllocator):
        broken = True

        def stats(self) -> bigmem.AllocatorStats:
            if self.broken:
                raise RuntimeError("no figures today")
            return super().stats()

    moody, other = Moody(name="test of moods"), bigmem.SystemAllocator(name="test beside moods")
    blocks = [other.allocate(MIB), moody.allocate(MIB)]
    for _ in range(2):
        assert scraped.of(other.name)["bigmem_live_bytes"] == MIB
        assert scraped.of(moody.name) == {}
    assert caplog.messages == [
        "the stats of allocator 'test of moods' fail with RuntimeError: no figures today; "
        "metrics have its last ones, if any"
    ]
    # What was known stays, and is counted once.
    for moody.broken in (False, True, False):
        assert scraped.of(moody.name)["bigmem_allocations_total"] == 1
    del blocks


def test_without_the_library_it_says_what_is_missing() -> None:
    code = """
import sys
sys.modules["prometheus_client"] = sys.modules["prometheus_client.core"] = None
try:
    import bigmem.exporters.prometheus
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Prometheus metrics need prometheus-client (pip install it)\n"


def test_bigmem_itself_needs_no_exporter() -> None:
    code = "import sys, bigmem; print([m for m in sys.modules if 'export' in m or 'prom' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
