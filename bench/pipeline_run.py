"""One run of the pipeline's comparison, in a process of its own; prints its figures as JSON.

The first witnesses are proved before the clock starts, on other allocators: what a process pays
once (CUDA, the key's way to the GPU, imports, the pinned memory of copies) is no policy's doing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import bigmem
from bench import machine
from bench.pipeline_cells import MODES, POLICIES, make_allocator
from bench.timing import percentile
from bigmem import osmem
from bigmem.cuda import PinnedAllocator
from bigmem.sizes import format_size
from prover.backends import get_backend
from prover.backends.base import ALLOCATE, GROUPS, PHASES, Backend
from prover.errors import ProverError
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.pipeline.batch import write
from prover.pipeline.engine import Engine
from prover.pipeline.report import LayerReport, Row, UnexplainedTime
from prover.pipeline.single import Statement
from prover.pipeline.timers import Timers
from prover.pipeline.usage import Meter, processor_seconds, reclaimers

WARM_UP_CIRCUITS = 2
"""The second finds the pinned memory of the first still being wiped, and pins some of its own."""

_UNIT = 2 << 20
"""In an arena, each large block begins a unit of its own; what it leaves of its last is idle."""

_ARENAS = ("dontneed", "recycle", "pinned")

_MARKS = {*GROUPS, *PHASES, "release"}


class Circuits:
    """Proofs of circuits of one key, and what was seen of them.

    Parameters
    ----------
    owners
        What `Engine` takes: allocators, mode, release, ahead.

    Attributes
    ----------
    engine
        What proves them.
    files
        proof.json and public.json of each.
    layers
        The layer ``circuit`` of each that is done.
    huge_bytes
        In huge pages after the first: they were asked for, but did we get any?
    """

    def __init__(
        self,
        key: ProvingKey,
        witnesses: Sequence[Path],
        backend: Backend,
        folder: Path,
        **owners: Any,
    ) -> None:
        self._witnesses = witnesses
        self.engine = Engine(key, backends=[backend], **owners)
        self.files = [
            (folder / f"{number}.proof.json", folder / f"{number}.public.json")
            for number in range(1, len(witnesses) + 1)
        ]
        self.layers: list[bigmem.LayerTimes] = []
        self.huge_bytes = 0

    def prove(self) -> None:
        """Prove all."""
        self.engine.run(len(self._witnesses), self._witness, self._finish, self._advance)

    def _witness(self, number: int) -> Witness:
        return Witness.open(self._witnesses[number - 1])

    def _finish(self, number: int, proved: Statement) -> None:
        proof, public = self.files[number - 1]
        with bigmem.layer("write"):
            write(proved, proof, public)

    def _advance(self, number: int, layer: bigmem.LayerTimes) -> None:
        if not self.layers:
            self.huge_bytes = osmem.huge_page_bytes() if machine.huge_regime() else 0
        self.layers.append(layer)


def by_mark(report: LayerReport) -> dict[str, float]:
    """Seconds of the proving thread by the marks of the origin's timers.

    What is in none of them counts by its innermost layer, and is ``gap`` where there is none or
    that is `ALLOCATE`.
    """
    total: dict[str, float] = {}
    for row in report.rows:
        if row.path[0] == "worker":
            marks = [name for name in row.path if name in _MARKS]
            name = marks[0] if marks else "gap" if _between(row, report) else row.path[-1]
            total[name] = total.get(name, 0.0) + row.gap_s
    return total


def gap(report: LayerReport) -> dict[str, float]:
    """The outer and the inner timer of the circuits, and what is in the gap between them.

    The outer one covers all of a circuit, the inner one what happens in its innermost layers but
    `ALLOCATE`, which is no proving.
    """
    circuit = [row for row in report.rows if row.path[:2] == ("worker", "circuit")]
    outer = sum(row.outer_s for row in circuit if len(row.path) == 2)
    between = [row for row in circuit if _between(row, report)]
    seconds = sum(row.gap_s for row in between)
    return {
        "outer_s": outer,
        "inner_s": outer - seconds,
        "gap_s": seconds,
        "gap_of_inner": seconds / (outer - seconds),
        "gap_map_s": sum(row.map_s for row in between),
        "gap_release_s": sum(row.release_s for row in between),
        "gap_fault_s": sum(row.fault_s for row in between),
        "gap_wait_s": sum(row.wait_s for row in between),
    }


def _between(row: Row, report: LayerReport) -> bool:
    depth = len(row.path)
    return row.path[-1] == ALLOCATE or any(
        other.path[:depth] == row.path != other.path for other in report.rows
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of the run; ``proofs`` names the files it has made."""
    policy = POLICIES[options.policy]
    if policy.malloc is not None:
        policy.malloc.make()  # or it was not preloaded
    key = ProvingKey.open(options.key)
    backend = get_backend(options.backend, domain=key.domain)
    with bigmem.MappedAllocator() as other:
        Circuits(
            key, options.witnesses[:WARM_UP_CIRCUITS], backend, options.out,
            vectors=other, assignments=other, mode=options.mode,
        ).prove()  # fmt: skip
    # Workers of their own: others wipe what the backend copies through, whatever the policy.
    others, pool = reclaimers(), bigmem.ReclaimPool()
    owners = {
        "vectors": make_allocator(policy.backend, options.regime, pool),
        "assignments": make_allocator(policy.assignments, options.regime, pool),
    }
    circuits = Circuits(
        key, options.witnesses, backend, options.out,
        mode=options.mode, release=policy.moment, ahead=options.ahead, **owners,
    )  # fmt: skip
    start = time.monotonic()
    if policy.ahead:
        assert isinstance(owners["assignments"], PinnedAllocator)
        owners["assignments"].prefault(_whole_units(circuits.engine))
    prefault = time.monotonic() - start
    reclaimed = processor_seconds(reclaimers() - others)
    device = sum(backend.device_seconds().values())
    machine.forget_peak()
    meter = Meter(*owners.values())
    with Timers(*owners.values()) as timers:
        began = time.monotonic()
        circuits.prove()
        ended = time.monotonic()
    usage = meter.stop()
    for owner in owners.values():
        owner.flush()
    flush = time.monotonic() - ended
    report = LayerReport.of(timers)
    walls = [layer.wall_s for layer in circuits.layers]
    run = {
        "began": began,
        "ended": ended,
        "proofs": [list(map(str, files)) for files in circuits.files],
        **asdict(usage),
        "p50_s": median(walls),
        "p99_s": percentile(walls, 99),
        "tax_s": usage.map_s + usage.fault_s + usage.release_s,
        **gap(report),
        "reading_s": report.reading_s,
        "prefault_s": prefault,
        "flush_s": flush,
        "device_s": sum(backend.device_seconds().values()) - device,
        "reclaim_cpu_s": processor_seconds(reclaimers() - others) - reclaimed,
        "huge_bytes": circuits.huge_bytes,
        "unexplained_s": report.unexplained_s,
        "synthesis_s": sum(r.outer_s for r in report.rows if r.path == ("ahead", "synthesis")),
        "layers": by_mark(report),
        "held_bytes": owners["assignments"].stats().peak_resident,
        "budget_bytes": circuits.engine.assignment_bytes + circuits.engine.mask_bytes,
        "owners": {name: asdict(owner.stats()) for name, owner in owners.items()},
    }
    errors = []
    try:
        report.check(options.unexplained)
    except UnexplainedTime as error:
        errors.append(str(error))
    rounding = 0
    if policy.assignments in _ARENAS:
        rounding = _most_rounding(circuits.engine)
    if run["held_bytes"] > run["budget_bytes"] + rounding:
        held, budget = format_size(run["held_bytes"]), format_size(run["budget_bytes"])
        errors.append(f"the assignments held {held}, and the budget was {budget}")
    if errors:
        run["error"] = "; ".join(errors)
    return run


def _whole_units(engine: Engine) -> int:
    """What as many assignments as there may be take of an arena."""
    units = sum(-(-nbytes // _UNIT) for nbytes in engine.vector_bytes)
    return units * _UNIT * _assignments(engine)


def _most_rounding(engine: Engine) -> int:
    """What arenas may take for two masks and all assignments beyond their sizes."""
    return _UNIT * (2 + len(engine.vector_bytes) * _assignments(engine))


def _assignments(engine: Engine) -> int:
    return engine.assignment_bytes // engine.circuit_bytes


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--policy", choices=POLICIES, required=True)
    parser.add_argument("--regime", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--ahead", type=int)
    parser.add_argument("--unexplained", type=float, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("witnesses", type=Path, nargs="+")
    options = parser.parse_args()
    machine.end_with_parent()
    machine.keep_to_regime()
    try:
        json.dump(measure(options), sys.stdout)
    except (bigmem.BigmemError, ProverError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
