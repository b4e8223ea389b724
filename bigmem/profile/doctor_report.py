"""A diagnosis as people read it: one content, as plain text or with colours on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bigmem.profile.costs import SMALL_PAGE, PageCosts
from bigmem.profile.diagnosis import Diagnosis
from bigmem.profile.gpu import GpuReport
from bigmem.profile.machine import NUMPY_HUGE_VARIABLE, Machine
from bigmem.profile.wording import figure
from bigmem.sizes import format_size
from bigmem.terminal import one_line

Row = tuple[str, ...]

_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: a table, with heads if it has several columns of figures."""

    title: str
    rows: tuple[Row, ...]
    heads: Row = ()


def headline(diagnosis: Diagnosis) -> str:
    """The answer in one line."""
    advice = diagnosis.advice
    if advice.policy is None:
        return "No memory could be measured: no advice."
    if advice.policy == "system":
        return "Nothing to win: leave NumPy's memory as it is (bigmem.make('system'))."
    return f"The release policy that fits: {advice.policy} (bigmem.make({advice.policy!r}))."


def sections(diagnosis: Diagnosis) -> Iterator[Section]:
    """Everything else; no section is empty, and nothing in it can upset a terminal."""
    for section in _sections(diagnosis):
        # A control group's name or a driver's message may hold anything.
        rows = tuple(tuple(one_line(cell) for cell in row) for row in section.rows)
        yield replace(section, rows=rows)


def _sections(diagnosis: Diagnosis) -> Iterator[Section]:
    advice, measured = diagnosis.advice, diagnosis.measured
    pages = {"small": f"{format_size(SMALL_PAGE)} pages", "huge": "2 MiB pages"}
    if advice.verdicts:
        yield Section(
            "Why",
            tuple((pages[each.pages], f"{each.policy}. {each.text}") for each in advice.verdicts),
        )
    if advice.changes:
        changes = tuple(
            (f"{each.what[0].upper()}{each.what[1:]}: {each.how}  ({each.why})",)
            for each in advice.changes
        )
        yield Section("What could be changed", changes)
    if advice.findings:
        yield Section("What was seen", tuple((finding,) for finding in advice.findings))
    if measured.small is not None:
        heads = tuple(pages.values())
        yield Section(
            "What a policy leaves to pay, ms per GiB beyond writing",
            tuple(
                (tax.policy, _figure(tax.small_ms), _figure(tax.huge_ms), tax.means)
                for tax in advice.taxes
            ),
            ("", *heads, ""),
        )
        yield Section(
            "What memory costs, ms per GiB",
            tuple(_cost_rows(measured.small, measured.huge)),
            ("", *heads),
        )
    if diagnosis.gpu.costs is not None:
        yield Section("What pinned memory costs", tuple(_gpu_rows(diagnosis.gpu)))
    yield Section("The machine", tuple(_machine_rows(diagnosis.machine)))


def plain(diagnosis: Diagnosis) -> str:
    """The report without any control characters; a fact or an advice is one line."""
    lines = [headline(diagnosis)]
    for section in sections(diagnosis):
        lines += ["", section.title]
        table = [*([section.heads] if section.heads else []), *section.rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        for row in table:
            cells = [
                text.ljust(width) if _is_text(section, column) else text.rjust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append(f"  {'  '.join(cells)}".rstrip())
    lines += ["", f"Examined in {diagnosis.seconds:.1f} s."]
    return "\n".join(lines)


def print_with_colours(diagnosis: Diagnosis) -> None:
    """Write the report to the terminal; needs rich."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(headline(diagnosis), style="bold green"))
    for section in sections(diagnosis):
        console.print(Text(f"\n{section.title}", style="bold"))
        table = Table(box=None, show_header=bool(section.heads), padding=(0, 0, 0, 2))
        for column in range(len(section.rows[0])):
            head = section.heads[column] if section.heads else ""
            table.add_column(Text(head), justify="left" if _is_text(section, column) else "right")
        for row in section.rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
    console.print(Text(f"\nExamined in {diagnosis.seconds:.1f} s.", style="dim"))


def _is_text(section: Section, column: int) -> bool:
    return not section.heads or not section.heads[column]


def _cost_rows(small: PageCosts, huge: PageCosts | None) -> Iterator[Row]:
    regimes = (small, huge)

    def row(name: str, attribute: str, scale: float = 1.0) -> Row:
        values = [None if each is None else getattr(each, attribute) for each in regimes]
        return (name, *(_figure(None if value is None else value * scale) for value in values))

    yield row("first touch", "first_touch_ms")
    yield row("writing warm memory", "warm_fill_ms")
    yield row("freeing an array of NumPy's", "numpy_free_ms")
    yield row("munmap", "munmap_ms")
    yield row("MADV_DONTNEED", "dontneed_ms")
    yield row("MADV_FREE", "free_ms")
    yield row("writing again after MADV_FREE", "refill_ms")
    yield row("one page fault, us", "fault_s", 1e6)


def _gpu_rows(gpu: GpuReport) -> Iterator[Row]:
    costs = gpu.costs
    assert costs is not None
    yield "device", costs.device
    yield "cudaHostAlloc", f"{_figure(costs.host_alloc_ms)} ms per GiB"
    yield "cudaFreeHost", f"{_figure(costs.host_free_ms)} ms per GiB"
    yield "cudaHostRegister", f"{_figure(costs.register_ms)} ms per GiB"
    yield "cudaHostUnregister", f"{_figure(costs.unregister_ms)} ms per GiB"
    yield "pinned copies", _both_ways(costs.pinned_to_device_ms, costs.pinned_to_host_ms)
    yield "pageable copies", _both_ways(costs.pageable_to_device_ms, costs.pageable_to_host_ms)
    arena = gpu.arena
    if arena is not None and arena.mechanism is not None:
        yield (
            f"PinnedAllocator, {arena.mechanism}",
            f"{_figure(arena.allocate_ms)} ms per GiB fresh, "
            f"{_figure(arena.give_back_ms)} to give back",
        )


def _both_ways(to_device: float, to_host: float) -> str:
    return f"{_figure(to_device)} ms per GiB to the GPU, {_figure(to_host)} back"


def _machine_rows(machine: Machine) -> Iterator[Row]:
    kind = f"{machine.architecture}, virtual machine" if machine.virtual else machine.architecture
    yield "system", f"Linux {machine.kernel} ({kind})"
    yield "python", f"{machine.python}, NumPy {machine.numpy}"
    yield "cores", f"{machine.cores} of {machine.machine_cores}, load {_figure(machine.load)}"
    yield "memory", f"{_size(machine.memory_bytes)}, {_size(machine.available_bytes)} available"
    swap = f"{_size(machine.swap_bytes)}, {_size(machine.swap_free_bytes)} free"
    yield "swap", swap if machine.swap_bytes else "none"
    yield "this process", f"{_size(machine.limit_bytes)}, {_size(machine.left_bytes)} left"
    for group in machine.groups:
        sizes = f"{_size(group.limit_bytes)}, {_size(group.left_bytes)} left"
        yield "control group", f"{sizes} (version {group.version}, {group.directory})"
    huge = machine.huge_pages
    yield (
        "huge pages",
        f"enabled {huge.enabled or _UNKNOWN}, defrag {huge.defrag or _UNKNOWN}, "
        f"khugepaged {_yes(huge.khugepaged)}, allowed to this process {_yes(huge.allowed)}",
    )
    variable = machine.numpy_huge_variable
    yield NUMPY_HUGE_VARIABLE, "not set" if variable is None else repr(variable)
    yield "NumPy hook", machine.numpy_hook
    promised = machine.overcommit
    yield (
        "overcommit",
        f"mode {_number(promised.mode)}, ratio {_number(promised.ratio)}, "
        f"{_size(promised.committed_bytes)} of {_size(promised.limit_bytes)} promised",
    )
    limits = machine.limits
    yield (
        "limits",
        f"address space {_limit(limits.address_space_bytes)}, data {_limit(limits.data_bytes)}, "
        f"locked {_limit(limits.locked_bytes)}",
    )
    yield "vm.max_map_count", _number(machine.max_mappings)
    yield "tells stalls (PSI)", _yes(machine.stalls)
    yield "NUMA nodes", str(len(machine.numa_nodes) or _UNKNOWN)


def _figure(value: float | None) -> str:
    return _UNKNOWN if value is None else figure(value)


def _size(nbytes: int | None) -> str:
    return _UNKNOWN if nbytes is None else format_size(nbytes)


def _limit(nbytes: int | None) -> str:
    return "unlimited" if nbytes is None else format_size(nbytes)


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)


def _yes(fact: bool | None) -> str:
    return _UNKNOWN if fact is None else "yes" if fact else "no"
