"""Show a Python program's memory tax: what allocating, faulting and freeing cost, line by line."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import bigmem
from bigmem.cli import _child, _launch, _outputs
from bigmem.cli._allocator import allocator_named
from bigmem.cli._command import UNUSABLE, Parser, tell
from bigmem.terminal import one_line

if TYPE_CHECKING:
    from bigmem.profile.account import Account
    from bigmem.profile.held import Held
    from bigmem.profile.prices import Prices
    from bigmem.profile.record import Record
    from bigmem.profile.resident import Resident

_EVENTS = 200_000


def configure(parser: Parser) -> None:
    """Add the verb's arguments."""
    parser.usage = (
        "%(prog)s [-o TRACE.json] [--png FILE] [--json FILE] [--allocator NAME] "
        "SCRIPT | -m MODULE | -c CODE | - [ARGS]"
    )
    parser.takes_program = True
    parser.add_argument(
        "-o", dest="trace", metavar="TRACE.json", type=Path, help="write a trace for Perfetto"
    )
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw a picture (matplotlib)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures")
    parser.add_argument(
        "--allocator",
        metavar="NAME",
        help="run the program on an allocator of bigmem's (default: on NumPy's own)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the program, report on it, and end as it did."""
    from bigmem.profile import prices, record, report
    from bigmem.profile.held import Held
    from bigmem.profile.resident import Resident

    _check(arguments)
    try:
        here = prices.measure()
    except (OSError, MemoryError) as error:
        raise bigmem.BigmemError(f"the cost of pages cannot be measured: {error}") from None
    resident = Resident()
    with (
        os.fdopen(os.memfd_create("bigmem-ledger"), "rb") as ledger,
        os.fdopen(os.memfd_create("bigmem-page"), "rb") as page,
    ):
        held = Held(page.fileno())

        def watch(process: int) -> None:
            resident.sample(process)
            held.sample()

        # By these names the program opens them, once it has imported NumPy.
        path, page_path = (f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (ledger, page))
        config = _config(arguments, path, page_path)
        words, environment = _launch.command(arguments.program, config)
        try:
            ended = _child.run(words, environment, watch if arguments.trace else None)
        except OSError as error:
            raise bigmem.BigmemError(f"cannot start {words[0]}: {error.strerror}") from None
        counted = record.read(path)
    found = _account(counted, here, ended)
    if counted is None:
        tell("bigmem: NumPy was not imported: there are no arrays to account for\n")
    elif sys.stderr is not None:
        parts = list(report.sections(found, here, counted, arguments.allocator))
        with contextlib.suppress(OSError):  # nobody can be told: files and exit code stand
            report.write(parts, sys.stderr)
    written = _write_files(arguments, found, here, counted, ended, resident, held)
    code = _child.end_alike(ended.status)
    return code if written or code else UNUSABLE


def _check(arguments: argparse.Namespace) -> None:
    """Refuse before the program runs what would lose its figures afterwards."""
    given = (arguments.trace, arguments.png, arguments.json)
    _outputs.check([target for target in given if target is not None])
    if arguments.png is not None and importlib.util.find_spec("matplotlib") is None:
        raise bigmem.BigmemError("--png needs matplotlib, which is not installed")
    if arguments.allocator is not None:
        allocator_named(arguments.allocator).close()


def _config(arguments: argparse.Namespace, path: str, page: str) -> dict[str, object]:
    profile: dict[str, object] = {"path": path, "parent": os.getpid(), "events": 0}
    if arguments.trace:
        profile |= {"events": _EVENTS, "page": page}
    config: dict[str, object] = {"profile": profile}
    if arguments.allocator is not None:
        config["allocator"] = arguments.allocator
    return config


def _account(counted: Record | None, here: Prices, ended: _child.Ended) -> Account:
    from bigmem.profile.account import Account, account

    if counted is None:
        return Account(wall_s=ended.end - ended.begin)
    if counted.ended:
        return account(counted, here, counted.end - ended.begin, counted.minor_faults)
    tell("bigmem: the program was cut off: faults of arrays still in use are not accounted for\n")
    faults = max(ended.minor_faults - counted.faults_at_begin, 0)
    return account(counted, here, ended.end - ended.begin, faults)


def _write_files(
    arguments: argparse.Namespace,
    found: Account,
    here: Prices,
    counted: Record | None,
    ended: _child.Ended,
    resident: Resident,
    held: Held,
) -> bool:
    """Write what was asked for; False, and told, where that has become impossible."""
    from bigmem.profile.account import as_json
    from bigmem.profile.savings import savings
    from bigmem.profile.trace import trace

    name = " ".join(arguments.program)
    files: list[tuple[Path, Iterable[bytes]]] = []
    if arguments.json is not None:
        estimates = savings(found) if arguments.allocator is None else ()
        figures = {
            **as_json(found),
            "complete": counted is None or counted.ended,
            "fault_prices_s": {"small": here.small.fault_s, "huge": here.huge.fault_s},
            "savings_s": {each.policy: each.saved_s for each in estimates},
            "layers": counted.layers["layers"] if counted and counted.layers else [],
        }
        text = json.dumps(figures, indent=2, allow_nan=False)
        files.append((arguments.json, [f"{text}\n".encode()]))
    if arguments.trace is not None:
        pieces = trace(
            counted,
            process=ended.process,
            name=name,
            begin=ended.begin,
            resident=resident.samples,
            held=held.samples,
        )
        files.append((arguments.trace, (piece.encode() for piece in pieces)))
    if arguments.png is not None:
        from bigmem.profile.picture import picture

        files.append((arguments.png, [picture(found, one_line(name))]))
    good = True
    for target, content in files:
        try:
            _outputs.write(target, content)
        except bigmem.BigmemError as error:
            tell(f"bigmem: {one_line(str(error))}\n")
            good = False
    return good
