"""The bench of the allocator core, end to end at a scale whose figures mean nothing."""

import ctypes.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import machine
from bench.core import steps
from bench.core.__main__ import FIGURES
from bench.core.contenders import MALLOCS, Contender, NotInstalled
from bench.core.report import markdown, targets
from bench.core.scale import FULL, QUICK
from bench.timing import percentile

MIB = 1 << 20
MEASURED_BY_ALL = {
    "release": {"sizes"},
    "hungry": {"sizes"},
    "allocate": {"sizes"},
    "resize": {"call_s", "both_s", "faults"},
    "steps": {"step_s", "out_s", "faults", "peak_bytes", "result_bytes"},
    "mixed": {"bytes_per_s", "peak_bytes", "peak_live_bytes"},
    "quiet": {"longest_wait_s", "alone_bytes_per_s", "beside_bytes_per_s"},
    "workers": {"reclaimed_bytes_per_s", "alone_bytes_per_s", "beside_bytes_per_s"},
    "fork": {"fork_s", "before_s", "first_s", "after_s", "first_faults", "after_faults"},
    "exit": {"exit_s"},
    "clearing": {"sizes"},
    "prefault": {"populate_s", "fill_s", "both_s"},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The JSON and the Markdown of one quick run."""
    folder = tmp_path_factory.mktemp("core")
    subprocess.run(
        [sys.executable, "-m", "bench.core", "--quick",
         "--json", str(folder / "core.json"), "--markdown", str(folder / "core.md")],
        check=True,
        capture_output=True,
        timeout=280,
    )  # fmt: skip
    return json.loads((folder / "core.json").read_text()), (folder / "core.md").read_text()


def test_every_contender_is_measured_in_both_regimes(written: tuple[dict[str, Any], str]) -> None:
    content, _ = written
    assert set(content["figures"]) == set(FIGURES) == set(MEASURED_BY_ALL)
    for name, by_regime in content["figures"].items():
        assert list(by_regime) == list(machine.REGIMES)
        for results in by_regime.values():
            assert list(results) == [contender.name for contender in FIGURES[name].contenders]
            for contender, found in results.items():
                if "absent" in found:
                    assert found["absent"].startswith("not installed (apt install lib"), contender
                else:
                    assert MEASURED_BY_ALL[name] <= set(found), (name, contender)


def test_counts_that_are_not_times_come_out_right(written: tuple[dict[str, Any], str]) -> None:
    figures = written[0]["figures"]
    pages = QUICK.result // 4096
    assert figures["steps"]["4 KiB"]["out="]["faults"] == 0
    assert figures["steps"]["4 KiB"]["recycle"]["faults"] < 100
    assert figures["steps"]["4 KiB"]["mapped"]["faults"] >= pages
    assert figures["steps"]["4 KiB"]["mapped"]["returned"] > 0.9
    # It idled for less than half of the decay time.
    assert figures["steps"]["4 KiB"]["recycle"]["returned"] < 0.5
    assert figures["fork"]["4 KiB"]["recycle"]["huge_before_bytes"] == 0
    grown = QUICK.resized * 3 // 2 // 4096
    assert grown <= figures["resize"]["4 KiB"]["recycle"]["faults"] < grown + 1000
    copied = figures["resize"]["4 KiB"]["recycle, copied"]["faults"]
    assert copied >= grown + QUICK.resized // 4096
    for found in figures["release"]["4 KiB"].values():
        assert {int(size): one["count"] for size, one in found["sizes"].items()} == dict(
            QUICK.calls
        )


def test_the_tables_hold_every_contender(written: tuple[dict[str, Any], str]) -> None:
    content, page = written
    assert page == markdown(FIGURES, content)
    sections = page.split("\n## ")
    for figure in FIGURES.values():
        (section,) = [s for s in sections if s.startswith(figure.title + "\n")]
        for regime in machine.REGIMES:
            table = section.split(f"**{regime} pages**")[1].split("**")[0]
            for contender in figure.contenders:
                assert f"\n| {contender.name} |" in table, (figure.name, contender.name)
    for line in page.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_promises_that_are_missed_are_said_so() -> None:
    good = {"step_s": 1.05, "out_s": 1.0, "faults": 99, "returned": 0.96}
    results = {"steps": {regime: {"recycle": good} for regime in machine.REGIMES}}
    assert [row[-1] for row in targets(results)[1:]] == ["yes"] * 6
    bad = {"step_s": 1.2, "out_s": 1.0, "faults": 101, "returned": 0.94}
    results["steps"]["huge"] = {"recycle": bad}
    assert [row[-1] for row in targets(results)[1:]] == ["yes"] * 3 + ["**no**"] * 3


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300), st.integers(1, 100))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(
    values: list[float], percent: int
) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100
    assert sum(value < found for value in values) < len(values) * percent / 100
    if len(values) < 100:
        assert percentile(values, 99) == max(values)


@given(st.integers(64 * MIB, 64 << 30))
def test_a_scale_keeps_within_the_memory(nbytes: int) -> None:
    scale = FULL.within(nbytes)
    for figure in FIGURES.values():
        if figure.name != "clearing":  # small, and the same everywhere
            assert figure.memory(scale) <= nbytes, figure.name
    sizes = [size for size, _ in scale.calls]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(16 << 30, nbytes // (2 * MIB) * (2 * MIB))


def test_libraries_are_found_in_a_folder_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jemalloc = next(c for c in MALLOCS if c.library == "jemalloc")
    monkeypatch.setattr(ctypes.util, "find_library", lambda _: None)
    with pytest.raises(NotInstalled, match=r"not installed \(apt install libjemalloc2\)"):
        jemalloc.variables(tmp_path)
    library = tmp_path / "usr" / "lib" / "libjemalloc.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    assert jemalloc.variables(tmp_path) == {"LD_PRELOAD": str(library)}
    monkeypatch.setattr(ctypes.util, "find_library", lambda _: "libjemalloc.so.2")
    assert jemalloc.variables(None) == {"LD_PRELOAD": "libjemalloc.so.2"}


def test_a_library_that_was_not_loaded_is_not_measured() -> None:
    with pytest.raises(RuntimeError, match="was not preloaded"):
        Contender("numpy, none", library="no-such-malloc").make()


def test_mixed_sizes_are_the_same_for_all() -> None:
    sizes = steps.array_sizes(FULL)
    assert sizes == steps.array_sizes(FULL)
    flat = [nbytes for step in sizes for nbytes in step]
    assert MIB <= min(flat) < 2 * MIB
    assert 32 * MIB < max(flat) <= 64 * MIB
