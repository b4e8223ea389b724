"""Prove many witnesses of one circuit in one process, on one allocator."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bigmem.terminal import can_draw
from prover.backends.cuda.announce import notify
from prover.cli import _options, one_line, tell, warn
from prover.errors import UnwritableOutput, UsageError, reason_of

if TYPE_CHECKING:
    from prover.cluster.batch import ClusterBatch
    from prover.formats.zkey import ProvingKey
    from prover.pipeline.batch import Batch, Made


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    _options.add_proving_options(parser)
    parser.add_argument(
        "--devices",
        type=_options.devices,
        metavar="N,...",
        help="GPUs to use, from 0, with a worker for each: 0,1 for two; 0,0 for two on one",
    )
    parser.add_argument(
        "--assignments-allocator",
        metavar="NAME",
        help="where the circuits' assignments come from, unless from --allocator too",
    )
    parser.add_argument(
        "--mode",
        choices=("normal", "seed"),
        default="normal",
        help="seed: make the vectors a, b and c of each circuit ahead, in host memory "
        "(default: normal, inside the proof)",
    )
    parser.add_argument(
        "--ahead",
        type=_options.size,
        metavar="BYTES",
        help="memory for assignments, for example 4GiB: the synthesis of further circuits waits "
        "while those in work take it, and what was released until it is given back "
        "(default: enough for one more than are proved at a time)",
    )
    parser.add_argument(
        "--timings",
        action="store_true",
        help="print where the time of each layer went; fail if too much of it is unexplained",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="prove on the workers of this Dask scheduler, for example tls://10.0.0.5:8786; "
        "--backend, --threads, --device-memory and --allocator are then theirs",
    )
    parser.add_argument(
        "--key-folder",
        metavar="DIR",
        help="with --scheduler: where workers may have the key, under any name",
    )
    parser.add_argument("witnesses", metavar="WITNESS.wtns", nargs="+")
    parser.add_argument(
        "--repeat",
        type=_options.number(1, 10**9),
        default=1,
        metavar="K",
        help="prove each witness K times",
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")


def run(arguments: argparse.Namespace) -> int:
    """Make, check and write all proofs; print one line for each and a summary."""
    from prover.formats.zkey import ProvingKey
    from prover.outputs import check_targets
    from prover.pipeline.batch import write_figures

    _options.keep_out_of_core_dumps()
    here = arguments.scheduler is None
    if not here:
        _refuse_with_scheduler(arguments)
    elif arguments.key_folder is not None:
        raise UsageError("--key-folder is a folder of workers: it goes with --scheduler")
    key = ProvingKey.open(arguments.key)
    batch = _batch(key, arguments) if here else _cluster_batch(key, arguments)
    _make_folder(arguments.out)
    if arguments.json is not None:
        check_targets(arguments.json, inputs=batch.inputs)
        if arguments.json in batch.outputs:
            raise UsageError(
                f"{arguments.json}: is where a proof goes; give the figures another name"
            )
    with _progress(len(batch)) as advance:
        figures = batch.run(advance)
    if arguments.json is not None:
        settings = _settings(arguments) if here else {"allocator": arguments.allocator}
        figures = {**settings, "threads": arguments.threads, **figures}
        write_figures(figures, arguments.json, batch.inputs)
    print(
        f"{len(batch)} {'proof' if len(batch) == 1 else 'proofs'}, each checked, in "
        f"{figures['wall_s']:.3f} s: "
        f"{one_line(str(arguments.out))}"
    )
    if not key.has_contribution:
        warn(f"{key.path}: has no contribution (delta is the generator): anyone can forge proofs")
    if batch.report is not None:
        tell(
            f"{batch.report}\nprocess {figures['process_s']:.3f} s, of it "
            f"{figures['key_check_s']:.3f} s to check the key and the witnesses\n"
        )
        batch.report.check()
    return 0


def _batch(key: "ProvingKey", arguments: argparse.Namespace) -> "Batch":
    from prover.pipeline.batch import Batch

    vectors = _options.allocator_named(arguments.allocator)
    assignments = vectors
    if arguments.assignments_allocator is not None:
        assignments = _options.allocator_named(
            arguments.assignments_allocator, "--assignments-allocator"
        )
    return Batch(
        key,
        arguments.witnesses,
        backends=_options.backends_for(
            key, arguments, proofs=len(arguments.witnesses) * arguments.repeat
        ),
        vectors=vectors,
        assignments=assignments,
        mode=arguments.mode,
        ahead=arguments.ahead,
        repeat=arguments.repeat,
        folder=arguments.out,
        threads=arguments.threads,
        timed=arguments.timings,
    )


def _settings(arguments: argparse.Namespace) -> dict[str, object]:
    import bigmem

    name = arguments.allocator or bigmem.get_allocator().name
    return {
        "allocator": name,
        "assignments_allocator": arguments.assignments_allocator or name,
        "mode": arguments.mode,
    }


def _refuse_with_scheduler(arguments: argparse.Namespace) -> None:
    _options.check_backend_options(arguments)
    for option, given in (
        ("--devices", arguments.devices is not None),
        ("--assignments-allocator", arguments.assignments_allocator is not None),
        ("--mode", arguments.mode != "normal"),
        ("--ahead", arguments.ahead is not None),
        ("--timings", arguments.timings),
    ):
        if given:
            raise UsageError(f"{option} is about proving on this machine; leave out --scheduler")


def _cluster_batch(key: "ProvingKey", arguments: argparse.Namespace) -> "ClusterBatch":
    from prover.cluster.batch import ClusterBatch
    from prover.cluster.remote import Settings

    return ClusterBatch(
        key,
        arguments.witnesses,
        scheduler=arguments.scheduler,
        settings=Settings(
            backend=arguments.backend,
            threads=arguments.threads,
            device_memory=arguments.device_memory,
            allocator=arguments.allocator,
            key_folder=arguments.key_folder,
        ),
        repeat=arguments.repeat,
        folder=arguments.out,
        threads=arguments.threads,
        notify=notify,
    )


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableOutput(path, f"cannot be made a folder: {reason_of(error)}") from None


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[["Made"], None]]:
    """A bar on a terminal where rich is installed, a line for each proof elsewhere."""
    if not can_draw(sys.stderr):
        yield lambda made: print(f"{one_line(made.proof)}  {made.wall_s:.3f} s", flush=True)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("proving", total=total)
        yield lambda made: bar.advance(task)
