"""The verb ``doctor``: what it writes, where, and within which bounds."""

import argparse
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_figures import (
    GPU,
    MACHINE,
    MEASURED,
    MIB,
    NO_GPU,
    NO_HUGE,
    SMALL,
    gpus,
    machines,
    measurements,
)
from hypothesis import given
from memory_group import JOIN, arguments_of, memory_group

from bigmem.cli import doctor
from bigmem.pressure import Group
from bigmem.profile import diagnosis
from bigmem.profile.advice import advise
from bigmem.profile.costs import Measured, PageCosts
from bigmem.profile.diagnosis import Diagnosis
from bigmem.profile.doctor_report import headline, plain, print_with_colours, sections
from bigmem.profile.gpu import GpuReport
from bigmem.profile.machine import Machine, MemoryGroup
from bigmem.profile.policies import MEANS

VERB = """
import argparse
from bigmem.cli import doctor
def run_doctor(*words):
    parser = argparse.ArgumentParser()
    doctor.configure(parser)
    return doctor.run(parser.parse_args(words))
"""


def run(program: str, *arguments: str, **environment: str) -> str:
    """In a process of its own, which must succeed and write nothing but its standard output."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def made_up(
    machine: Machine = MACHINE, measured: Measured = MEASURED, gpu: GpuReport = NO_GPU
) -> Diagnosis:
    return Diagnosis(machine, measured, gpu, advise(machine, measured, gpu), 4.5)


# One of everything.
FULL = made_up(
    replace(MACHINE, groups=(MemoryGroup(2, "/cg", 1 << 30, 1 << 29),), stalls=False), gpu=GPU
)


def shape(value: Any) -> Any:
    """The names in a JSON value, and what is below them; of a list, those of its first item."""
    if isinstance(value, dict):
        return {name: shape(below) for name, below in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


PAGE_COSTS = dict.fromkeys(
    (
        "nbytes", "rounds", "huge_share", "fault_s", "warm_up_ms", "first_touch_ms",
        "warm_fill_ms", "dontneed_ms", "free_ms", "refill_ms", "numpy_free_ms", "munmap_ms",
    )
)  # fmt: skip
SHAPE = {
    "schema": None,
    "machine": {
        **dict.fromkeys(
            (
                "kernel", "architecture", "virtual", "cores", "machine_cores", "load",
                "memory_bytes", "available_bytes", "swap_bytes", "swap_free_bytes", "limit_bytes",
                "left_bytes", "stalls", "max_mappings", "python", "numpy", "numpy_huge_variable",
                "numpy_hook",
            )
        ),
        "huge_pages": dict.fromkeys(("enabled", "defrag", "khugepaged", "allowed")),
        "overcommit": dict.fromkeys(("mode", "ratio", "limit_bytes", "committed_bytes")),
        "limits": dict.fromkeys(("address_space_bytes", "data_bytes", "locked_bytes")),
        "groups": [dict.fromkeys(("version", "directory", "limit_bytes", "left_bytes"))],
        "numa_nodes": [None],
    },
    "measured": {
        "small": PAGE_COSTS,
        "huge": PAGE_COSTS,
        **dict.fromkeys(("huge_share", "numpy_huge_share", "wanted_bytes", "note")),
    },
    "gpu": {
        "costs": dict.fromkeys(
            (
                "device", "nbytes", "host_alloc_ms", "host_free_ms", "register_ms",
                "unregister_ms", "pinned_to_device_ms", "pageable_to_device_ms",
                "pinned_to_host_ms", "pageable_to_host_ms",
            )
        ),
        "note": None,
        "devices": None,
        "arena": dict.fromkeys(("mechanism", "why", "allocate_ms", "give_back_ms")),
    },
    "advice": {
        "policy": None,
        "pages": None,
        "verdicts": [dict.fromkeys(("pages", "policy", "gain_ms", "gain_share", "text"))],
        "taxes": [dict.fromkeys(("policy", "small_ms", "huge_ms", "means"))],
        "findings": [None],
        "changes": [dict.fromkeys(("what", "why", "how"))],
    },
    "seconds": None,
}  # fmt: skip


def test_the_names_in_the_json_are_a_promise() -> None:
    parsed = json.loads(json.dumps(FULL.as_json(), allow_nan=False))
    assert parsed["schema"] == 1
    assert shape(parsed) == SHAPE


def test_json_under_a_limit_of_address_space_and_without_touching_cupy(tmp_path: Path) -> None:
    imported = tmp_path / "imported"
    (tmp_path / "cupy.py").write_text(f"open({str(imported)!r}, 'w').close()")
    program = f"""{VERB}
import resource, sys
limit = 2 << 30
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
assert run_doctor("--json") == 0
from bigmem import osmem
assert osmem.peak_resident_bytes() < 1 << 30
assert "cupy" not in sys.modules
"""
    parsed = json.loads(run(program, PYTHONPATH=str(tmp_path)))
    assert not imported.exists()
    assert set(parsed) == set(SHAPE)
    assert parsed["machine"]["limits"]["address_space_bytes"] == 2 << 30
    assert any("ulimit -v" in each["how"] for each in parsed["advice"]["changes"])
    small = parsed["measured"]["small"]
    assert 0 < small["nbytes"] <= (2 << 30) // 10
    assert small.pop("huge_share") == 0
    assert all(value > 0 for name, value in small.items() if name != "numpy_free_ms")
    assert parsed["measured"]["note"] is None
    assert parsed["advice"]["policy"] in MEANS
    assert parsed["gpu"]["costs"] is None
    assert parsed["gpu"]["note"]


@pytest.fixture
def group() -> Iterator[Group]:
    with memory_group(384 * MIB) as made:
        yield made


def test_in_a_small_control_group(group: Group) -> None:
    program = f"""{JOIN}{VERB}
assert run_doctor() == 0
"""
    report = run(program, *arguments_of(group))
    assert report.startswith("The release policy that fits: ")
    assert " at a time instead of 256 MiB, for want of memory or time: less exact." in report
    assert f"(version {group.version}, {group.directory})" in report
    assert f"echo BYTES > {group.directory}/memory." in report
    assert "\x1b" not in report


def lines_of(report: str) -> list[str]:
    return [line.strip() for line in report.splitlines()]


def test_the_plain_report_is_complete() -> None:
    report = plain(FULL)
    assert (
        headline(FULL)
        == lines_of(report)[0]
        == ("The release policy that fits: recycle (bigmem.make('recycle')).")
    )
    for section in sections(FULL):
        assert section.title in lines_of(report)
        for row in section.rows:
            assert any(all(cell in line for cell in row) for line in lines_of(report)), row
    for finding in FULL.advice.findings:
        assert finding in lines_of(report)
    for change in FULL.advice.changes:
        assert sum(change.how in line and change.why in line for line in lines_of(report)) == 1
    for verdict in FULL.advice.verdicts:
        assert sum(verdict.text in line for line in lines_of(report)) == 1
    for fact in ("cudaHostAlloc", "MADV_FREE", "0.50", "Some GPU", "mode 0", "vm.max_map_count"):
        assert fact in report


def test_the_coloured_report_says_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    print_with_colours(FULL)
    written = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert written == [" ".join(line.split()) for line in plain(FULL).splitlines()]


def test_names_cannot_upset_a_terminal() -> None:
    group = MemoryGroup(2, "/cg/\x1b[2J\n", 1 << 30, 1 << 29)
    report = plain(made_up(replace(MACHINE, groups=(group,))))
    assert "/cg/\\x1b[2J\\n" in report
    assert "\x1b" not in report


@pytest.mark.parametrize(
    ("measured", "answer"),
    [
        (Measured(None, None, None, None, 256 * MIB, "Nothing."), "no advice"),
        (NO_HUGE, "recycle"),
        (replace(NO_HUGE, small=replace(NO_HUGE.small, first_touch_ms=0.0, numpy_free_ms=0.0)),
         "Nothing to win"),
    ],
)  # fmt: skip
def test_the_first_line_is_the_answer(measured: Measured, answer: str) -> None:
    assert answer in plain(made_up(measured=measured)).splitlines()[0]


@given(machines, measurements, gpus)
def test_any_diagnosis_can_be_written(machine: Machine, measured: Measured, gpu: GpuReport) -> None:
    found = made_up(machine, measured, gpu)
    assert "None" not in plain(found)
    json.dumps(found.as_json(), allow_nan=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_progress_is_for_terminals_and_leaves_nothing_behind(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretend(tell: Any) -> Diagnosis:
        tell("small pages")
        return FULL

    monkeypatch.setattr(diagnosis, "diagnose", pretend)
    parser = argparse.ArgumentParser()
    doctor.configure(parser)
    for stream in (io.StringIO(), Terminal()):
        output = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "stdout", output)
        assert doctor.run(parser.parse_args(words)) == 0
        assert "small pages ..." not in output.getvalue()
        if words:
            assert json.loads(output.getvalue()) == json.loads(json.dumps(FULL.as_json()))
        told = stream.getvalue()
        assert told == "" if not stream.isatty() else told.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("error", "note"),
    [(OSError(12, "Cannot allocate memory"), "Cannot all"), (MemoryError(), "no")],
)
def test_what_no_memory_can_be_had_for_is_told(
    error: Exception, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_huge(nbytes: int, *, huge: bool, seconds: float) -> PageCosts:
        if huge:
            raise error
        return SMALL

    monkeypatch.setattr(diagnosis.osmem, "huge_pages_work", lambda: True)
    monkeypatch.setattr(diagnosis.costs, "page_costs", refuse_huge)
    measured = diagnosis._measure_pages(lambda doing: None)
    # Unmeasured is not refused.
    assert (measured.small, measured.huge, measured.huge_share) == (SMALL, None, None)
    assert measured.note is not None
    assert note in measured.note
