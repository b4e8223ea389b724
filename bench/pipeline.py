"""The pipeline of the origin story, end to end, under every policy: who pays for memory, and when.

    python -m bench.pipeline --log2 14 16 [--backend cpu] [--circuits 10] [--runs 5] [-o FOLDER]

A run is a fresh process that proves so many circuits with one key, after two that do not count.
Runs are interleaved: each round makes one of every cell, in an order of its own. Every proof is
verified from its files. Each run is kept in FOLDER/runs.jsonl as soon as it is made, and the same
command goes on where it was stopped; tables and pictures show what there is by then. Runs are only
compared with those of the same sitting: after a pause of more than ten minutes, or a restart of the
machine, rounds that are not whole get another run of the baseline.

The exit code is 1 if a run failed, its proofs were wrong, or more than 1 % of its wall time was
explained by none of its layers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from bench import command_line, machine, pipeline_report
from bench.command_line import Distinct
from bench.pipeline_cells import MODES, POLICIES, Cell
from bench.pipeline_inputs import Inputs, PipelineError
from bench.pipeline_journal import Journal, Run
from bench.pipeline_run import WARM_UP_CIRCUITS
from bigmem import BigmemError, osmem
from bigmem.sizes import format_size
from prover.curves import CURVES
from prover.errors import ProverError
from prover.pipeline.report import MOST_UNEXPLAINED

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("bench", "bigmem", "prover")
"""Runs of other versions are not compared."""
SAMPLE_SECONDS = 0.01

MOST_SECONDS_A_ROW = {"cpu": 1e-4, "cuda": 2e-6}
"""Of each circuit: ten times what two cores take, or some ten times what is expected of an H200."""
MOST_SECONDS_BESIDE = 120.0
"""For all that does not grow with the circuits: imports, CUDA, kernels that have to be compiled."""

GPU_WARM_UP = 16 << 30
"""A GPU's machine has far more memory than a run of it wants, and nobody knows which comes."""

console = Console(stderr=True)


class Comparison:
    """All cells of a command line, and how each is run.

    Attributes
    ----------
    cells, refusals
        What is compared, and why policies cannot run here, by name.
    settings
        What runs must share to be compared.

    Raises
    ------
    PipelineError
        If a GPU is asked for and there is none.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._end = time.monotonic() + options.seconds
        self.cells = [
            Cell(*one)
            for one in itertools.product(
                options.log2, options.modes, options.regimes, options.policies
            )
        ]
        self.refusals = {
            name: refusal
            for name in options.policies
            if (refusal := POLICIES[name].refusal(options.backend, options.libraries))
        }
        self._runnable = [cell for cell in self.cells if cell.policy not in self.refusals]
        if not self._runnable:
            raise PipelineError(
                "none of the policies can be run here: "
                + "; ".join(f"{name}: {refusal}" for name, refusal in self.refusals.items())
            )
        folder = options.inputs or options.out / "inputs"
        self._inputs = {
            log2: Inputs(folder / options.curve, options.curve, log2, options.circuits)
            for log2 in options.log2
        }
        for inputs, mode in itertools.product(self._inputs.values(), options.modes):
            least = inputs.least_ahead(mode)
            if options.ahead is not None and options.ahead < least:
                raise PipelineError(
                    f"--ahead {format_size(options.ahead)} holds no circuit of 2^{inputs.log2} in "
                    f"{mode} mode, which takes {format_size(least)}"
                )
        names = ("backend", "curve", "circuits", "ahead", "unexplained")
        self.settings = {name: getattr(options, name) for name in names}
        self.settings["machine"] = machine.describe()
        self.settings["sources"] = machine.sources(*(ROOT / name for name in SOURCES))
        if options.backend == "cuda":
            self.settings["gpu"] = _gpu()

    def run(self, journal: Journal, progress: Progress) -> None:
        """Make the runs that the journal lacks, as long as there is time.

        Those that failed in an earlier call come last: they may well fail again.
        """
        for inputs in self._inputs.values():
            inputs.make(self._options.backend, console.print)
        total = self._options.runs * len(self._runnable)
        task = progress.add_task("", total=total, completed=total - self.left(journal))
        before = {(cell, number) for cell, number, _ in journal.failed()}
        failed: set[tuple[Cell, int]] = set()
        visits = itertools.product((False, True), range(self._options.runs), self._options.log2)
        for again, number, log2 in visits:  # a size at a time, so that its files stay in memory
            here = [cell for cell in self._runnable if cell.log2 == log2]
            random.Random(number).shuffle(here)
            here = [cell for cell in here if again or (cell, number) not in before]
            warm = False
            while due := [c for c in journal.due(here, number) if (c, number) not in failed]:
                if time.monotonic() >= self._end:
                    return
                if not warm:
                    self._warm_up(log2)
                    warm = True
                if self._run_one(due[0], number, journal, progress, task):
                    failed.add((due[0], number))
                progress.update(task, completed=total - self.left(journal))

    def _run_one(
        self, cell: Cell, number: int, journal: Journal, progress: Progress, task: TaskID
    ) -> bool:
        """Make a run and keep it; whether it failed."""
        title = f"2^{cell.log2} {cell.mode}, {cell.policy}, {cell.regime}"
        progress.update(task, description=title)
        began = journal.clock()
        run = self.measure(cell)
        failed = "error" in run
        if failed or not console.is_terminal:
            outcome = run["error"] if failed else f"{run['wall_s']:.2f} s"
            console.print(f"{title}: {outcome}", markup=False, soft_wrap=True)
        journal.add(cell, number, run, began)
        return failed

    def left(self, journal: Journal) -> int:
        """How many runs the rounds lack."""
        return sum(len(journal.lacking(self._runnable, n)) for n in range(self._options.runs))

    def failed(self, journal: Journal) -> list[tuple[Cell, int, Run]]:
        """The runs that failed, of those that are asked for; of all others, wrong proofs."""
        return [
            (cell, number, run)
            for cell, number, run in journal.failed()
            if (cell in self._runnable and number < self._options.runs) or run.get("wrong_proof")
        ]

    def _warm_up(self, log2: int) -> None:
        """Have the host give the machine what a run will use, so that the first does not pay."""
        vector = 32 << log2
        wanted = 8 * vector + (self._options.ahead or 8 * vector)  # of the backend, assignments
        if self._options.backend == "cuda":
            wanted = max(wanted, GPU_WARM_UP)
        machine.warm_up_beside(min(wanted, osmem.available_bytes() // 3))

    def _most_seconds(self, cell: Cell) -> float:
        """How long a run may take: one that hangs must not keep the others from being made."""
        circuits = self._options.circuits + WARM_UP_CIRCUITS
        rows: int = circuits << cell.log2
        return MOST_SECONDS_BESIDE + MOST_SECONDS_A_ROW[str(self._options.backend)] * rows

    def measure(self, cell: Cell) -> dict[str, Any]:
        """The figures of one run, or what went wrong with it as ``error``."""
        inputs, options = self._inputs[cell.log2], self._options
        with tempfile.TemporaryDirectory() as folder:
            words = ["--key", inputs.key, "--mode", cell.mode, "--policy", cell.policy]
            words += ["--regime", cell.regime, "--backend", options.backend, "-o", folder]
            words += ["--unexplained", options.unexplained]
            words += [] if options.ahead is None else ["--ahead", options.ahead]
            words += inputs.witnesses
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.pipeline_run", *map(str, words)],
                cwd=ROOT,
                env=POLICIES[cell.policy].variables(cell.regime, options.libraries),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                with sampling(process.pid) as samples:
                    out, problems = process.communicate(timeout=self._most_seconds(cell))
            except subprocess.TimeoutExpired as error:
                return {"error": f"took longer than {error.timeout:.0f} s"}
            finally:
                process.kill()
                process.wait()
            if process.returncode:
                last = (problems.strip().splitlines() or ["no message"])[-1]
                return {"error": f"exit code {process.returncode}: {last}"}
            run: dict[str, Any] = json.loads(out)
            try:
                wrong = inputs.judge([(Path(p), Path(q)) for p, q in run.pop("proofs")])
            except ProverError as error:
                wrong = str(error)
        if wrong:
            return {"error": wrong, "wrong_proof": True}
        begin, end = run.pop("began"), run.pop("ended")
        run["resident"] = thinned([(t - begin, size) for t, size in samples if begin <= t <= end])
        return run


def _gpu() -> dict[str, Any]:
    """Describe the GPU, in a process that ends again and leaves it alone."""
    program = (
        "import json; from bench.gpu_run import describe_gpu; print(json.dumps(describe_gpu()))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PipelineError(f"--backend cuda finds no GPU here: {last}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def sampling(pid: int) -> Iterator[list[tuple[float, int]]]:
    """Times (of `time.monotonic`) and resident bytes of a process, while the block runs."""
    samples: list[tuple[float, int]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_SECONDS):
            nbytes = osmem.resident_bytes_of(pid)
            if nbytes is None:
                return
            samples.append((time.monotonic(), nbytes))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def thinned(samples: list[tuple[float, int]], most: int = 60) -> list[tuple[float, int]]:
    """At most so many samples, the highest of each stretch, so that no peak is lost."""
    step = max(1, -(-len(samples) // most))
    stretches = [samples[i : i + step] for i in range(0, len(samples), step)]
    highest = [max(stretch, key=lambda sample: sample[1]) for stretch in stretches]
    return [(round(seconds, 3), size) for seconds, size in highest]


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--curve", choices=CURVES, default="bls12381")
    parser.add_argument("--log2", type=command_line.log2, nargs="+", required=True,
                        action=Distinct, metavar="N",
                        help="binary logarithms of the domains")  # fmt: skip
    parser.add_argument(
        "--circuits", type=command_line.count, default=10, metavar="K", help="of a run"
    )
    parser.add_argument(
        "--runs", type=command_line.count, default=5, metavar="N", help="of each cell"
    )
    parser.add_argument("--ahead", type=command_line.size, metavar="BYTES",
                        help="memory for assignments, such as 4GiB (default: one in proof and one "
                        "that is made meanwhile)")  # fmt: skip
    parser.add_argument("--modes", nargs="+", action=Distinct, choices=MODES, default=list(MODES))
    parser.add_argument("--regimes", nargs="+", action=Distinct, choices=machine.REGIMES,
                        default=list(machine.REGIMES), help="of pages")  # fmt: skip
    parser.add_argument(
        "--policies", nargs="+", action=Distinct, choices=POLICIES, default=list(POLICIES)
    )
    parser.add_argument("--libraries", type=Path, metavar="FOLDER",
                        help="look for jemalloc and mimalloc there first")  # fmt: skip
    parser.add_argument("--unexplained", type=command_line.share, default=MOST_UNEXPLAINED,
                        metavar="SHARE", help="part of its wall time that a run may leave "
                        "unexplained (default: %(default)s); half a millisecond a "
                        "proof and 1.5 a thread always may be")  # fmt: skip
    parser.add_argument("--seconds", type=command_line.amount, default=float("inf"),
                        help="begin no run after these")  # fmt: skip
    parser.add_argument("--inputs", type=Path, metavar="FOLDER",
                        help="keep keys and witnesses there (default: in the results' folder)",
                        )  # fmt: skip
    parser.add_argument(
        "-o", "--out", type=command_line.folder, default=Path("pipeline-out"), metavar="FOLDER"
    )
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Run what is missing; write and show the results."""
    options = parse(words)
    try:
        comparison = Comparison(options)
        options.out.mkdir(parents=True, exist_ok=True)
        with Journal(options.out / "runs.jsonl", comparison.settings) as journal:
            return _go_on(comparison, journal, options.out, f"pipeline-{options.backend}")
    except OSError as error:
        print(f"pipeline: {error.filename or options.out}: {error.strerror}", file=sys.stderr)
        return 2
    except (BigmemError, PipelineError, ProverError, subprocess.CalledProcessError) as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pipeline: interrupted; the same command writes what is missing", file=sys.stderr)
        return 130


def _go_on(comparison: Comparison, journal: Journal, folder: Path, name: str) -> int:
    """Make what the journal lacks, and show all of it; the exit code."""
    pipeline_report.check(folder, name)
    interrupted = False
    with Progress(console=console) as progress:
        try:
            comparison.run(journal, progress)
        except KeyboardInterrupt:
            interrupted = True
    if left := comparison.left(journal):
        console.print(f"{left} runs are not made yet, or failed; the same command makes them")
    results = pipeline_report.summarize(
        comparison.settings,
        {cell: journal.runs(cell) for cell in comparison.cells},
        comparison.refusals,
        comparison.failed(journal),
    )
    page = pipeline_report.write(results, folder, name)
    try:
        print(page, end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or its end would fail, too
        reason = (error.strerror or "").lower()
        raise PipelineError(
            f"the output was cut off: {reason}; {folder / name}.md has it"
        ) from None
    return pipeline_report.verdict(results, interrupted)


def _end_as_interrupted(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end_as_interrupted)
    sys.exit(main())
