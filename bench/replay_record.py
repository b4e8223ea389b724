"""Make the logs that `bench.replay` replays: of the prover, and of three ordinary programs.

    python -m bench.replay_record [PROGRAM ...] [--folder bench/logs]

Each program runs under `bigmem run --trace`, on small pages, each block in a mapping of its own:
what it has touched is then what is in memory when it lets the block go.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import command_line, demo, machine
from bench.replay import LOGS
from bench.replay_log import load
from bench.replay_report import describe

PIPELINES = ("image_stack", "spectrum", "dataframe")
PROGRAMS = ("prover", *PIPELINES)
REPEAT = "2"


def words(program: str, folder: Path) -> list[str]:
    """The program as Python takes it; whatever it needs is put into the folder."""
    if program in PIPELINES:
        return [str(demo.ROOT / "bench" / "pipelines" / f"{program}.py")]
    key = demo.make_key(folder)
    witnesses = map(str, sorted(demo.CIRCUIT.glob("*.wtns")))
    out = str(folder / "proofs")
    return ["-m", "prover", "batch", str(key), *witnesses, "--backend", "cpu", "--repeat", REPEAT,
            "-o", out]  # fmt: skip


def record(program: str, target: Path) -> None:
    """Run a program and keep its log, compressed."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log.json"
        hook = ["-m", "bigmem", "run", "--allocator", "mapped", "--trace", str(log)]
        subprocess.run(
            [sys.executable, *hook, *words(program, Path(name))],
            cwd=demo.ROOT,
            env=machine.regime_environment(machine.REGIMES[0]),
            stdout=sys.stderr,
            check=True,
        )
        # The same bytes whenever the log is.
        target.write_bytes(gzip.compress(log.read_bytes(), mtime=0))


def main() -> None:
    """Record, and describe what was recorded."""
    parser = argparse.ArgumentParser(prog="python -m bench.replay_record", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("programs", metavar="PROGRAM", nargs="*", action=command_line.Distinct,
                        help=f"of {', '.join(PROGRAMS)}")  # fmt: skip
    parser.add_argument("--folder", type=command_line.folder, default=LOGS)
    arguments = parser.parse_args()
    for program in arguments.programs or PROGRAMS:
        if program not in PROGRAMS:
            parser.error(f"there is no program {program}; known are {', '.join(PROGRAMS)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for program in arguments.programs or PROGRAMS:
        target = arguments.folder / f"{program}.json.gz"
        record(program, target)
        print(f"{target} ({target.stat().st_size:,} bytes): {describe(load(target).facts)}")


if __name__ == "__main__":
    main()
