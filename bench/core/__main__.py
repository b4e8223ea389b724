"""Measure the allocator core, with every contender in a process of its own.

python -m bench.core [--quick] [--only FIGURE ...] [--memory SIZE] [--preload-dir FOLDER]
"""

import argparse
import dataclasses
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from bench import command_line, machine
from bench.core.calls import ALLOCATE, HUNGRY, RELEASE
from bench.core.contenders import Contender, NotInstalled
from bench.core.figure import Figure, Found
from bench.core.pages import CLEARING, PREFAULT
from bench.core.processes import EXIT, FORK
from bench.core.quiet import QUIET, RECLAIM
from bench.core.report import markdown
from bench.core.resize import RESIZE
from bench.core.scale import FULL, QUICK, Scale
from bench.core.steps import MIXED, STEPS
from bigmem import osmem
from bigmem.sizes import format_size

ORDER = (
    RELEASE, HUNGRY, ALLOCATE, RESIZE, STEPS, MIXED, QUIET, RECLAIM, FORK, EXIT, CLEARING, PREFAULT
)  # fmt: skip
FIGURES = {figure.name: figure for figure in ORDER}
LEAST_MEMORY = 64 * machine.MIB
SHARE_OF_AVAILABLE = 0.6

console = Console(stderr=True)


def run_one(
    figure: Figure, contender: Contender, regime: str, scale: Scale, preload: Path | None
) -> Found:
    """What one contender's process measures."""
    try:
        variables = contender.variables(preload)
    except NotInstalled as missing:
        return {"absent": str(missing)}
    order = {"figure": figure.name, "contender": contender.name, "scale": dataclasses.asdict(scale)}
    done = subprocess.run(
        [sys.executable, "-m", "bench.core", "--one", json.dumps(order)],
        env={**machine.regime_environment(regime), **variables},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: Found = json.loads(done.stdout)
    return found


def obey(order: dict[str, Any]) -> Found:
    """Measure what `run_one` of the parent process asked for."""
    figure = FIGURES[order["figure"]]
    contender = next(c for c in figure.contenders if c.name == order["contender"])
    return figure.measure(contender, Scale(**order["scale"]))


def warm_up(nbytes: int, regime: str) -> None:
    """No contender shall pay the host for memory that the machine never gave out before."""
    subprocess.run(
        [sys.executable, "-m", "bench.machine", str(nbytes)],
        env=machine.regime_environment(regime),
        check=True,
    )


def run(names: list[str], scale: Scale, preload: Path | None) -> dict[str, Any]:
    """Every figure in every regime; results by figure, regime and contender."""
    results: dict[str, Any] = {}
    columns = (*Progress.get_default_columns()[:2], TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        total = len(machine.REGIMES) * sum(len(FIGURES[name].contenders) for name in names)
        task = progress.add_task("", total=total)
        for name in names:
            figure = FIGURES[name]
            results[name] = {}
            for regime in machine.REGIMES:
                progress.update(task, description=f"{name}, {regime}: warming up")
                warm_up(figure.memory(scale), regime)
                results[name][regime] = {}
                for contender in figure.contenders:
                    progress.update(task, description=f"{name}, {regime}: {contender.name}")
                    found = run_one(figure, contender, regime, scale, preload)
                    results[name][regime][contender.name] = found
                    progress.advance(task)
    return results


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.core", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="tiny sizes: figures mean nothing")
    parser.add_argument(
        "--only",
        nargs="+",
        action=command_line.Distinct,
        choices=FIGURES,
        metavar="FIGURE",
        help=f"of {', '.join(FIGURES)}",
    )
    parser.add_argument(
        "--memory",
        type=command_line.memory,
        metavar="SIZE",
        help="hold no more at once (default: 60 %% of MemAvailable)",
    )
    parser.add_argument(
        "--preload-dir",
        type=Path,
        metavar="FOLDER",
        help="where to look first for jemalloc, mimalloc and tcmalloc",
    )
    command_line.add_result_options(parser)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        machine.keep_to_regime()
        json.dump(obey(json.loads(arguments.one)), sys.stdout)
        return
    available = osmem.available_bytes()
    memory = arguments.memory or int(available * SHARE_OF_AVAILABLE)
    if memory < LEAST_MEMORY:
        parser.error(f"{format_size(LEAST_MEMORY)} of memory is the least that shows anything")
    scale = (QUICK if arguments.quick else FULL).within(memory)
    try:
        figures = run(arguments.only or list(FIGURES), scale, arguments.preload_dir)
    except subprocess.CalledProcessError as error:  # it has told why
        command = shlex.join(error.cmd[1:])
        raise SystemExit(f"bench.core: {command} ended with {error.returncode}") from None
    content = {
        "machine": machine.describe(),
        "available_bytes": available,
        "memory_bytes": memory,
        "scale": dataclasses.asdict(scale),
        "figures": figures,
    }
    tables = markdown(FIGURES, content)
    print(tables)
    command_line.write_results(arguments, content, tables)


if __name__ == "__main__":
    main()
