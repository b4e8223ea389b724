"""Array work on a Dask cluster of two processes, with and without `BigmemPlugin`.

    python -m bench.dask [--side 8192] [--chunks 4000] [--rounds 3] [--json FILE] [--markdown FILE]

* spectrum: a square array of random doubles, made by rows, is rechunked to columns, transformed
  (FFT) and reduced to the power of each frequency; four times, on new numbers.
* chunks: many chunks of 160 KiB are kept, and let go; what dask/distributed#5971 is about.

Every run has a cluster of its own, in a process of its own; ways and page regimes take turns, and
medians count. All ways must find the same. Memory is what the scheduler knows, as the dashboard
shows it, except for the peak, which is the kernel's.
"""

import argparse
import json
import logging
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, Future, LocalCluster, wait

from bench import command_line, machine
from bench.machine import MIB
from bigmem import osmem
from bigmem.dask import BigmemPlugin
from bigmem.sizes import format_size

WORKERS = 2
PARTS = 8  # of the square array, in each direction
STEPS = 4
CHUNK_BYTES = 160 << 10
# Longer than idle memory stays warm, and less than the 30 s after which Dask calls memory old;
# these runs call it that after 3 s, so that what is left is seen.
REST_SECONDS = 12.0
OLD = "3s"
WAYS = ("Dask", "Dask, heap not trimmed", "recycle", "deferred")
"""Dask as it comes, which has the C library trim its heap; as #5971 found it; with the plugin."""
WORKLOADS = ("spectrum", "chunks")
Found = dict[str, float]


def spectrum(client: Client, sample: Callable[[], None], side: int) -> float:
    """The power at all frequencies, over all steps."""
    power = 0.0
    for step in range(STEPS):
        random = da.random.default_rng(step)
        rows = random.standard_normal((side, side), chunks=(side // PARTS, side))
        columns = rows.rechunk((side, side // PARTS))
        total = (abs(da.fft.fft(columns, axis=0)) ** 2).mean()
        power += float(watched(client.compute(total), sample).result())
    return power


def chunks(client: Client, sample: Callable[[], None], count: int) -> float:
    """The sum of what was kept for a while."""
    random = da.random.default_rng(0)
    length = CHUNK_BYTES // 8
    kept = client.persist(random.random(count * length, chunks=length))
    wait(kept)
    sample()
    return float(watched(client.compute(kept.sum()), sample).result())


def watched(future: "Future[Any]", sample: Callable[[], None]) -> "Future[Any]":
    """The future, once it is done; samples are taken until then."""
    while not future.done():
        sample()
        time.sleep(0.1)
    return future


class Memory:
    """The memory of the cluster as its scheduler sees it, in bytes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.most_unmanaged = 0

    def sample(self) -> None:
        """Take note of the highest."""
        self.most_unmanaged = max(self.most_unmanaged, self.now()[1])

    def now(self) -> tuple[int, int, int]:
        """Managed, unmanaged, and the part of that which is old."""

        def state(dask_scheduler: Any) -> tuple[int, int, int]:
            memory = dask_scheduler.memory
            return memory.managed, memory.unmanaged, memory.unmanaged_old

        managed, unmanaged, old = self._client.run_on_scheduler(state)
        return managed, unmanaged, old


def usage() -> Found:
    """What a worker has taken so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = osmem.peak_resident_bytes()
    return {"faults": used.ru_minflt, "kernel_s": used.ru_stime, "peak_bytes": peak}


def used(client: Client) -> Found:
    """The sum over the workers."""
    each = list(client.run(usage).values())
    return {name: sum(one[name] for one in each) for name in each[0]}


def run_once(way: str, workload: str, options: argparse.Namespace) -> Found:
    """One run on a fresh cluster."""
    environment = dict(dask.config.get("distributed.nanny.pre-spawn-environ"))
    if way == "Dask, heap not trimmed":
        del environment["MALLOC_TRIM_THRESHOLD_"]
    settings = {
        "distributed.nanny.pre-spawn-environ": environment,
        "distributed.worker.memory.recent-to-old-time": OLD,
    }
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            memory_limit=options.limit,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        trimmed = set(client.run(lambda: "MALLOC_TRIM_THRESHOLD_" in os.environ).values())
        if trimmed != {way != "Dask, heap not trimmed"}:
            raise SystemExit("MALLOC_TRIM_THRESHOLD_ is not as it should be: unset it")
        if way in ("recycle", "deferred"):
            client.register_plugin(BigmemPlugin(way))
        da.ones(WORKERS, chunks=1).map_blocks(np.sqrt).compute()  # workers import what they need
        memory = Memory(client)
        before, start = used(client), time.perf_counter()
        work, size = (
            (spectrum, options.side) if workload == "spectrum" else (chunks, options.chunks)
        )
        result = work(client, memory.sample, size)
        wall, after = time.perf_counter() - start, used(client)
        time.sleep(1.5)  # two heartbeats
        at_once = memory.now()[1]
        time.sleep(REST_SECONDS)
        return {
            "result": result,
            "wall_s": wall,
            "kernel_s": after["kernel_s"] - before["kernel_s"],
            "faults": after["faults"] - before["faults"],
            "peak_bytes": after["peak_bytes"],
            "most_unmanaged_bytes": memory.most_unmanaged,
            "after_bytes": at_once,
            "old_bytes": memory.now()[2],
        }


def measure(options: argparse.Namespace) -> dict[str, dict[str, dict[str, Found]]]:
    """Medians by workload, regime and way."""
    runs: dict[tuple[str, str, str], list[Found]] = {}
    cases = [(w, r, way) for w in WORKLOADS for r in machine.REGIMES for way in WAYS]
    for turn in range(options.rounds):
        for number, case in enumerate(cases if turn % 2 else reversed(cases), 1):
            workload, regime, way = case
            words = ["--one", way, workload, "--side", str(options.side)]
            words += ["--chunks", str(options.chunks), "--limit", options.limit]
            runs.setdefault(case, []).append(machine.in_regime(regime, "bench.dask", *words))
            done = f"round {turn + 1} of {options.rounds}, run {number} of {len(cases)}"
            print(f"{done}: {workload}, {regime} pages, {way}", file=sys.stderr, flush=True)
    found: dict[str, dict[str, dict[str, Found]]] = {}
    for (workload, regime, way), each in runs.items():
        medians = {key: statistics.median(one[key] for one in each) for key in each[0]}
        found.setdefault(workload, {}).setdefault(regime, {})[way] = medians
    for workload, regimes in found.items():
        results = {f"{one['result']:.9g}" for ways in regimes.values() for one in ways.values()}
        if len(results) != 1:
            raise SystemExit(f"{workload}: the ways found different results: {sorted(results)}")
    return found


def table(regimes: dict[str, dict[str, Found]]) -> list[list[str]]:
    """A row a regime and way."""
    rows = [
        [
            "pages", "arrays", "wall, s", "ratio", "in the kernel, s", "faults", "peak, MiB",
            "most unmanaged, MiB", "unmanaged afterwards, MiB", "old, MiB",
        ]
    ]  # fmt: skip
    sizes = ("peak_bytes", "most_unmanaged_bytes", "after_bytes", "old_bytes")
    for regime in machine.REGIMES:
        for way in WAYS:
            one, plain = regimes[regime][way], regimes[regime]["Dask"]
            rows.append(
                [
                    regime,
                    way,
                    f"{one['wall_s']:.2f}",
                    f"{one['wall_s'] / plain['wall_s']:.2f}",
                    f"{one['kernel_s']:.2f}",
                    f"{one['faults']:,.0f}",
                    *(f"{one[size] / MIB:,.0f}" for size in sizes),
                ]
            )
    return rows


def markdown(found: dict[str, dict[str, dict[str, Found]]], options: argparse.Namespace) -> str:
    """What docs/dask.md shows."""
    square = options.side**2 * 8 // MIB
    kept = options.chunks * CHUNK_BYTES // MIB
    titles = {
        "spectrum": f"Rechunk, FFT and reduction of {square:,} MiB, {STEPS} times",
        "chunks": f"{options.chunks:,} chunks of {CHUNK_BYTES >> 10} KiB ({kept:,} MiB), let go",
    }
    lines = []
    for workload, title in titles.items():
        lines += [f"**{title}**", "", *machine.markdown_table(table(found[workload]), names=2), ""]
    return "\n".join([*lines, f"Machine: {machine.summary()}, Dask {version('dask')}.", ""])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--side", type=command_line.at_least(PARTS), default=8192,
                        help="of the square array")  # fmt: skip
    parser.add_argument("--chunks", type=command_line.count, default=4000, help="of 160 KiB")
    parser.add_argument("--limit", default="6GiB", help="memory of each worker")
    parser.add_argument("--rounds", type=command_line.count, default=3)
    command_line.add_result_options(parser)
    parser.add_argument("--one", nargs=2, metavar=("WAY", "WORKLOAD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        room = WORKERS * command_line.size(options.limit)  # Dask reads it itself
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    largest = max(8 * options.side**2, CHUNK_BYTES * options.chunks)
    if largest > room:
        parser.error(f"{format_size(largest)} is more than the {format_size(room)} of the workers")
    if options.one:
        warnings.simplefilter("ignore")  # of graphs that are large for Dask's taste
        logging.getLogger("distributed.shuffle").setLevel(logging.ERROR)
        way, workload = options.one
        print(json.dumps(run_once(way, workload, options)))
        return
    machine.warm_up(6 << 30)
    found = measure(options)
    page = markdown(found, options)
    print(page, end="")
    figures = {
        "side": options.side,
        "chunks": options.chunks,
        "limit": options.limit,
        "rounds": options.rounds,
        "dask": version("dask"),
        "medians": found,
    }
    command_line.write_results(options, figures, page)


if __name__ == "__main__":
    main()
