"""Replay logs of real programs on any allocator: its time, and its memory.

    python -m bench.replay [LOG ...] [--allocator NAME ...] [--json FILE] [--markdown FILE]

LOG is a file of `bigmem.Traced` or of `bigmem run --trace`, plain or compressed by gzip; without
one those in bench/logs are taken (`python -m bench.replay_record` makes them). NAME is an allocator
of bigmem's, a plug-in's, or one of "glibc", "glibc tuned", "jemalloc", "mimalloc", "tcmalloc";
without one all of these and bigmem's policies are taken. Every replay is a process of its own; of
several rounds, by turns, the median counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

import bigmem
from bench import command_line, machine
from bench.core.contenders import MALLOCS, POLICIES, Contender, NotInstalled
from bench.replay_log import Log, load
from bench.replay_report import page
from bench.replay_run import measure
from bigmem import osmem
from bigmem.profile.resident import Resident
from bigmem.sizes import format_size

LOGS = Path(__file__).resolve().parent / "logs"
SAMPLE_SECONDS = 0.002
CONTENDERS = {
    **dict(zip(("glibc", "glibc tuned", "jemalloc", "mimalloc", "tcmalloc"), MALLOCS, strict=True)),
    **{contender.name: contender for contender in POLICIES},
}
Found = dict[str, Any]

console = Console(stderr=True)


def contender_named(name: str) -> Contender:
    """One that is compared by default, or an allocator of any other name.

    Raises
    ------
    BigmemError
        There is no such allocator.
    """
    if name not in CONTENDERS:
        bigmem.make(name).close()
    return CONTENDERS.get(name, Contender(name, name))


def replay(path: Path, name: str, regime: str, pace: float, preload: Path | None) -> Found:
    """What one replay in a process of its own took."""
    try:
        variables = contender_named(name).variables(preload)
    except NotInstalled as missing:
        return {"absent": str(missing)}
    order = json.dumps({"log": str(path), "allocator": name, "pace": pace})
    resident = Resident()
    with subprocess.Popen(
        [sys.executable, "-m", "bench.replay", "--one", order],
        env={**machine.regime_environment(regime), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        while child.poll() is None:
            resident.sample(child.pid)
            time.sleep(SAMPLE_SECONDS)
        out, err = child.communicate()
    if child.returncode:
        last = (err.strip().splitlines() or [f"ended with {child.returncode}"])[-1]
        return {"failed": last}
    found: Found = json.loads(out)
    found["mean_bytes"] = mean(found, resident.samples)
    return found


def mean(found: Found, samples: Sequence[tuple[float, int]]) -> float:
    """Bytes above those of before the replay, over its time."""
    begin, end, before = found["begin"], found["end"], found["before_bytes"]
    within = [(when, nbytes - before) for when, nbytes in samples if begin < when < end]
    points = [(begin, 0), *within, (end, found["end_bytes"])]
    area = sum((b - a) * (low + high) / 2 for (a, low), (b, high) in pairwise(points))
    return float(area / (end - begin))


def middle(runs: Sequence[Found]) -> Found:
    """The median of each figure; what failed once has failed."""
    for run in runs:
        if "absent" in run or "failed" in run:
            return run
    return {key: median(run[key] for run in runs) for key in runs[0] if key not in ("begin", "end")}


def titled(paths: Sequence[Path]) -> dict[str, Path]:
    """Logs by the names of their files; by their whole paths where several share one."""
    stems = [path.name.partition(".")[0] for path in dict.fromkeys(paths)]
    return {
        stem if stems.count(stem) == 1 else str(path): path
        for stem, path in zip(stems, dict.fromkeys(paths), strict=True)
    }


def examined(path: Path) -> Found:
    """The facts of a log, which has room on this machine.

    Raises
    ------
    BigmemError
        It cannot be replayed, or not here.
    """
    facts = load(path).facts
    # Allocators hold more than what is in use.
    needed, left = facts["peak_touched"] * 3 // 2, osmem.available_bytes()
    if needed > left:
        raise bigmem.BigmemError(
            f"{path} takes up to {format_size(needed)}, but this machine has {format_size(left)} "
            "left: replay it on a larger one"
        )
    return facts


def compare(
    logs: Sequence[Path], names: Sequence[str], rounds: int, pace: float, preload: Path | None
) -> dict[str, Any]:
    """Every log on every allocator in both regimes: results by log, regime and allocator."""
    found = {title: (path, examined(path)) for title, path in titled(logs).items()}
    results: dict[str, Any] = {}
    columns = (*Progress.get_default_columns()[:2], TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(found) * len(machine.REGIMES) * rounds * len(names))
        for title, (path, facts) in found.items():
            results[title] = {"log": facts, "regimes": {}}
            for regime in machine.REGIMES:
                progress.update(task, description=f"{title}, {regime}: warming up")
                machine.warm_up(facts["peak_touched"] * 3 // 2)
                runs: dict[str, list[Found]] = {name: [] for name in names}
                for turn in range(rounds):
                    for name in names if turn % 2 else reversed(names):
                        progress.update(task, description=f"{title}, {regime}: {name}")
                        runs[name].append(replay(path, name, regime, pace, preload))
                        progress.advance(task)
                results[title]["regimes"][regime] = {n: middle(r) for n, r in runs.items()}
    return results


def failures(results: dict[str, Any]) -> list[str]:
    """Which replays failed; an allocator that is not installed is none."""
    return [
        f"{title} ({regime}) on {name}"
        for title, found in results.items()
        for regime, runs in found["regimes"].items()
        for name, one in runs.items()
        if "failed" in one
    ]


def obey(order: dict[str, Any]) -> Found:
    """Measure what `replay` of the parent process asked for."""
    log: Log = load(Path(order["log"]))
    return measure(log, contender_named(order["allocator"]), order["pace"])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("logs", metavar="LOG", nargs="*", type=Path, action=command_line.Distinct)
    made.add_argument(
        "--allocator",
        metavar="NAME",
        nargs="+",
        action=command_line.Distinct,
        default=list(CONTENDERS),
    )
    made.add_argument(
        "--rounds", type=command_line.count, default=3, metavar="N", help="of each (default 3)"
    )
    made.add_argument(
        "--pace",
        type=pace,
        default=1.0,
        metavar="P",
        help="times between operations, in parts of the program's own (default 1); 0 for none",
    )
    made.add_argument(
        "--preload-dir",
        type=Path,
        metavar="FOLDER",
        help="where to look first for jemalloc, mimalloc and tcmalloc",
    )
    command_line.add_result_options(made)
    made.add_argument("--one", help=argparse.SUPPRESS)
    return made


def pace(text: str) -> float:
    """A parser of ``0`` and of numbers above it, for argparse."""
    with suppress(ValueError):
        if float(text) == 0:
            return 0.0
    return command_line.amount(text)


def main() -> None:
    """Replay, print, write."""
    made = parser()
    arguments = made.parse_args()
    try:
        if arguments.one:
            machine.keep_to_regime()
            json.dump(obey(json.loads(arguments.one)), sys.stdout)
            return
        logs = arguments.logs or sorted(LOGS.glob("*.json.gz"))
        for name in arguments.allocator:
            contender_named(name)
        results = compare(
            logs, arguments.allocator, arguments.rounds, arguments.pace, arguments.preload_dir
        )
    except bigmem.BigmemError as error:
        made.error(str(error))
    except KeyboardInterrupt:
        raise SystemExit("bench.replay: interrupted; nothing was written") from None
    content = {"rounds": arguments.rounds, "pace": arguments.pace, "logs": results}
    text = page(content)
    print(text, end="")
    command_line.write_results(arguments, content, text)
    if failed := failures(results):
        raise SystemExit(f"bench.replay: not everything could be replayed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
