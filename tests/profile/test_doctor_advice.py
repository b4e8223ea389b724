"""What the doctor concludes, from figures that no machine has to have."""

from dataclasses import replace
from typing import Any

import pytest
from doctor_figures import (
    GIB,
    GPU,
    GPU_COSTS,
    MACHINE,
    MEASURED,
    MIB,
    NO_GPU,
    NO_HUGE,
    SMALL,
    gpus,
    machines,
    measurements,
    with_huge_pages,
)
from hypothesis import given

from bigmem.profile.advice import Advice, advise
from bigmem.profile.costs import Measured, PageCosts
from bigmem.profile.gpu import GpuReport
from bigmem.profile.machine import Limits, Machine, MemoryGroup, Overcommit
from bigmem.profile.policies import is_short

THP = "/sys/kernel/mm/transparent_hugepage"


def told(advice: Advice) -> list[str]:
    """Every sentence of it."""
    changes = [text for each in advice.changes for text in (each.what, each.why, each.how)]
    means = [each.means for each in advice.taxes]
    return [*(each.text for each in advice.verdicts), *advice.findings, *changes, *means]


def commands(advice: Advice) -> list[str]:
    return [each.how for each in advice.changes]


def test_an_ordinary_machine_recycles_and_needs_no_change() -> None:
    advice = advise(MACHINE, MEASURED, NO_GPU)
    assert (advice.policy, advice.pages, advice.changes) == ("recycle", "huge", ())
    small, huge = advice.verdicts
    assert (small.pages, small.policy, small.gain_ms) == ("small", "recycle", 590.0)
    assert (huge.pages, huge.policy, huge.gain_ms) == ("huge", "recycle", 95.0)
    assert small.gain_share == pytest.approx(590 / 640)
    for figure in ("590 ms", "520 ms", "70 ms", "50 ms", "92%", "deferred wins 70 ms"):
        assert figure in small.text
    assert "deferred wins 3.0 ms" in huge.text


def test_the_tax_of_every_policy() -> None:
    taxes = {each.policy: each for each in advise(MACHINE, MEASURED, NO_GPU).taxes}
    assert list(taxes) == ["system", "mapped", "dontneed", "deferred", "recycle"]
    assert [each.small_ms for each in taxes.values()] == [590.0, 592.0, 585.0, 520.0, 0.0]
    assert [each.huge_ms for each in taxes.values()] == [95.0, 94.6, 94.5, 92.0, 0.0]


def test_numpy_in_small_pages_is_judged_by_them() -> None:
    advice = advise(MACHINE, replace(MEASURED, numpy_huge_share=0.0), NO_GPU)
    assert (advice.policy, advice.pages) == ("recycle", "small")
    assert "NumPy's large arrays have small pages." in advice.findings


def test_unmeasured_numpy_is_taken_to_ask_for_huge_pages_unless_told_otherwise() -> None:
    measured = replace(MEASURED, numpy_huge_share=None)
    assert advise(MACHINE, measured, NO_GPU).pages == "huge"
    off = replace(MACHINE, numpy_huge_variable="0")
    assert advise(off, measured, NO_GPU).pages == "small"


@pytest.mark.parametrize(
    ("cores", "costs", "policy"),
    [
        (8, SMALL, "deferred"),
        (1, replace(SMALL, dontneed_ms=1.0), "dontneed"),
        (1, SMALL, "system"),  # advising away is hardly cheaper than NumPy's way
        (1, replace(SMALL, dontneed_ms=None), "system"),
        (8, replace(SMALL, numpy_free_ms=3.0), "system"),
    ],
)
def test_where_memory_is_short_nothing_is_kept(cores: int, costs: PageCosts, policy: str) -> None:
    machine = replace(MACHINE, cores=cores, left_bytes=GIB)
    advice = advise(machine, replace(NO_HUGE, small=costs), NO_GPU)
    assert advice.policy == policy
    assert "Memory is short: 1 GiB left of 64 GiB." in advice.findings
    assert "recycle would win" in advice.verdicts[0].text


def test_where_nothing_is_to_win_that_is_said() -> None:
    cheap = replace(SMALL, first_touch_ms=1.0, numpy_free_ms=1.0)
    advice = advise(MACHINE, replace(NO_HUGE, small=cheap), NO_GPU)
    assert advice.policy == "system"
    assert "nothing to win" in advice.verdicts[0].text
    assert advice.verdicts[0].gain_ms == 0.0


def test_without_figures_there_is_no_advice_on_policies() -> None:
    nothing = Measured(None, None, None, None, 256 * MIB, "Not everything could be measured: no.")
    advice = advise(MACHINE, nothing, NO_GPU)
    assert (advice.policy, advice.pages, advice.verdicts) == (None, None, ())
    assert nothing.note in advice.findings
    assert all(each.small_ms is None and each.huge_ms is None for each in advice.taxes)


@pytest.mark.parametrize(
    ("settings", "finding", "command"),
    [
        ({"enabled": "never"}, "setting is never", f"echo madvise > {THP}/enabled"),
        ({"enabled": None, "defrag": None}, "no setting for them", None),
        ({"allowed": False}, "PR_SET_THP_DISABLE", "prctl(PR_SET_THP_DISABLE)"),
        ({"defrag": "never"}, "0% of what asked", f"echo madvise > {THP}/defrag"),
        ({}, "0% of what asked", "compact_memory"),
    ],
)
def test_refused_huge_pages(settings: dict[str, Any], finding: str, command: str | None) -> None:
    advice = advise(with_huge_pages(**settings), NO_HUGE, NO_GPU)
    assert any("not to be had" in each and finding in each for each in advice.findings)
    assert len(advice.changes) == (command is not None)
    assert command is None or command in advice.changes[0].how


def test_numpy_told_not_to_ask_for_huge_pages() -> None:
    machine = replace(MACHINE, numpy_huge_variable="0")
    advice = advise(machine, replace(MEASURED, numpy_huge_share=0.0), NO_GPU)
    assert commands(advice) == ["unset NUMPY_MADVISE_HUGEPAGE"]
    assert "428 ms per GiB less" in advice.changes[0].why


@pytest.mark.parametrize(
    ("group", "command", "why"),
    [
        (MemoryGroup(2, "/cg/a", 8 * GIB, GIB // 2), "/cg/a/memory.max", "512 MiB of 8 GiB"),
        (MemoryGroup(1, "/cg/b", GIB, GIB), "/cg/b/memory.limit_in_bytes", "1 GiB hold no huge"),
        (MemoryGroup(2, "/cg/c", 32 * GIB, 30 * GIB), None, None),
    ],
)
def test_limits_of_control_groups(group: MemoryGroup, command: str | None, why: str | None) -> None:
    wide = MemoryGroup(2, "/cg", 100 * GIB, 99 * GIB)
    advice = advise(replace(MACHINE, groups=(group, wide)), MEASURED, NO_GPU)
    assert len(advice.changes) == (command is not None)
    assert command is None or advice.changes[0].how.startswith(f"echo BYTES > {command}")
    assert why is None or why in advice.changes[0].why


@pytest.mark.parametrize(
    ("machine", "command"),
    [
        (replace(MACHINE, overcommit=Overcommit(2, 50, 32 * GIB, 30 * GIB)), "overcommit_memory=0"),
        (replace(MACHINE, limits=Limits(2 * GIB, None, None)), "ulimit -v unlimited"),
        (replace(MACHINE, limits=Limits(None, 2 * GIB, None)), "ulimit -d unlimited"),
        (replace(MACHINE, stalls=False), "psi=1"),
        (replace(MACHINE, max_mappings=1000), "vm.max_map_count=65530"),
    ],
)
def test_settings_that_stand_in_the_way(machine: Machine, command: str) -> None:
    advice = advise(machine, MEASURED, NO_GPU)
    assert len(advice.changes) == 1
    assert command in advice.changes[0].how


def test_a_gpu_is_told_of_with_its_price() -> None:
    advice = advise(MACHINE, MEASURED, GPU)
    assert any("50 GiB/s from pinned memory, 7.7 GiB/s" in each for each in advice.findings)
    # 490 ms of pinning against 110 ms a copy.
    assert any("490 ms per GiB" in each and "5 copies" in each for each in advice.findings)
    assert commands(advice) == ["ulimit -l unlimited, or memlock in /etc/security/limits.conf"]
    slow = replace(GPU_COSTS, pinned_to_device_ms=130.0)
    findings = advise(MACHINE, MEASURED, GpuReport(slow, None, 1)).findings
    assert any("no faster here" in each for each in findings)


def test_why_a_gpu_was_not_measured_is_told() -> None:
    report = GpuReport(None, "not measured: the driver is unwell", 1)
    assert "GPU: not measured: the driver is unwell." in advise(MACHINE, MEASURED, report).findings


@pytest.mark.parametrize(
    ("machine", "finding"),
    [
        (replace(MACHINE, load=17.0), "The machine is busy (load 17.0, 16 cores)"),
        (replace(MACHINE, cores=1), "This process has one core"),
        (replace(MACHINE, numa_nodes=(0, 1)), "There are 2 NUMA nodes"),
        (replace(MACHINE, numpy_hook="new threads"), "threads started later"),
    ],
)
def test_what_else_is_worth_knowing(machine: Machine, finding: str) -> None:
    findings = advise(machine, MEASURED, NO_GPU).findings
    assert any(finding in each for each in findings)
    assert not any(finding in each for each in advise(MACHINE, MEASURED, NO_GPU).findings)


def test_inexact_and_untouched_memory_is_told() -> None:
    costs = replace(SMALL, nbytes=32 * MIB, warm_up_ms=2400.0)
    findings = advise(MACHINE, replace(MEASURED, small=costs), NO_GPU).findings
    assert any("32 MiB at a time instead of 256 MiB" in each for each in findings)
    assert any("The very first fill took 2400 ms per GiB" in each for each in findings)


@given(machines, measurements, gpus)
def test_any_figures_give_advice_that_does_not_contradict_them(
    machine: Machine, measured: Measured, gpu: GpuReport
) -> None:
    advice = advise(machine, measured, gpu)
    regimes = {"small": measured.small, "huge": measured.huge}
    had = [name for name, costs in regimes.items() if costs is not None]
    assert [each.pages for each in advice.verdicts] == had
    assert (advice.policy is None) == (not had) == (advice.pages is None)
    short = is_short(machine.limit_bytes, machine.left_bytes)
    for verdict in advice.verdicts:
        costs = regimes[verdict.pages]
        assert costs is not None
        freeing = costs.munmap_ms if costs.numpy_free_ms is None else costs.numpy_free_ms
        whole = costs.first_touch_ms + freeing
        assert 0 <= verdict.gain_ms <= whole
        assert 0 <= verdict.gain_share <= 1
        assert (verdict.policy == "system") == (verdict.gain_ms == 0)
        assert not (verdict.policy == "recycle" and short)
        assert not (verdict.policy == "deferred" and machine.cores == 1)
        if whole > 10 * costs.warm_fill_ms and not short:
            assert verdict.policy == "recycle"


@given(machines, measurements, gpus)
def test_nothing_is_advised_about_what_was_not_seen(
    machine: Machine, measured: Measured, gpu: GpuReport
) -> None:
    advice = advise(machine, measured, gpu)
    text = " ".join(commands(advice))
    assert len({each.what for each in advice.changes}) == len(advice.changes)
    about_huge = [how for how in commands(advice) if THP in how or "THP" in how or "compact" in how]
    assert len(about_huge) <= 1
    if measured.huge is not None or measured.huge_share is None:
        assert not about_huge
    if machine.huge_pages.enabled != "never":
        assert f"{THP}/enabled" not in text
    if measured.huge is None:
        assert "NUMPY_MADVISE_HUGEPAGE" not in text
    if not machine.groups:
        assert "memory.max" not in text
        assert "limit_in_bytes" not in text
    if machine.overcommit.mode != 2:
        assert "overcommit" not in text
    for limit, command in zip(
        (
            machine.limits.address_space_bytes,
            machine.limits.data_bytes,
            machine.limits.locked_bytes,
        ),
        ("ulimit -v", "ulimit -d", "ulimit -l"),
        strict=True,
    ):
        if limit is None:
            assert command not in text
    if not gpu.devices:
        assert "ulimit -l" not in text
    if machine.stalls is not False:
        assert "psi=1" not in text
    if machine.max_mappings is None:
        assert "max_map_count" not in text


@given(machines, measurements, gpus)
def test_every_sentence_is_one_line_of_plain_words(
    machine: Machine, measured: Measured, gpu: GpuReport
) -> None:
    for text in told(advise(machine, measured, gpu)):
        assert text.isprintable()
        assert text.strip() == text != ""
        assert not any(word in text for word in ("None", "nan", "inf ", "e+", "e-0"))
