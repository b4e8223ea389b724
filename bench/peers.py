"""The prover against snarkjs: whole commands on the dense chain, in one run.

    python -m bench.peers 12 16 --curve bn128 bls12381 --json peers.json

Both prove the same witness with the same key, turn by turn, so that whatever else the machine does
falls on both; the best of the rounds counts. Wall time runs from the start of the process to its
end, Python's and Node's start included; peak RSS is the whole process's.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.chain import write_chain
from bench.command_line import Distinct, add_result_options, count, log2, write_results
from bench.machine import markdown_table, summary
from bench.node import snarkjs_command
from prover.curves import CURVES, Curve


@dataclass(frozen=True)
class Command:
    """One run of a command."""

    wall_s: float
    peak_rss_bytes: int


@dataclass(frozen=True)
class Comparison:
    """The prover and snarkjs on one circuit; best of the rounds, each quantity by itself."""

    curve: str
    k: int
    prover: Command
    snarkjs: Command

    @property
    def speedup(self) -> float:
        """Snarkjs's wall time over ours."""
        return self.snarkjs.wall_s / self.prover.wall_s

    def cells(self) -> list[str]:
        """One row of the table."""
        cells = [self.curve, f"2^{self.k}"]
        for command in (self.prover, self.snarkjs):
            cells += [f"{command.wall_s:.2f} s", f"{command.peak_rss_bytes / 1e6:.0f} MB"]
        return [*cells, f"{self.speedup:.2f}x"]


def compare(curve: Curve, k: int, rounds: int, folder: Path, snarkjs: list[str]) -> Comparison:
    """Make the circuit and its key in a folder, then let both prove."""
    circuit, witness = write_chain(folder, k, curve)
    key, vk = folder / f"chain{k}.zkey", folder / f"chain{k}.vk.json"
    prover = [sys.executable, "-m", "prover"]
    measure([*prover, "setup", str(circuit), "-o", str(key), "--insecure-dev-key"])
    measure([*prover, "export-vk", str(key), str(vk)])
    proof, public = str(folder / "proof.json"), str(folder / "public.json")
    files = [str(key), str(witness), proof, public]
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(measure([*prover, "prove", *files]))
        measure([*snarkjs, "groth16", "verify", str(vk), public, proof])
        theirs.append(measure([*snarkjs, "groth16", "prove", *files]))
        measure([*prover, "verify", str(vk), public, proof])
    return Comparison(curve.name, k, _best(ours), _best(theirs))


HEADS = ("curve", "domain", "prover", "peak", "snarkjs", "peak", "ratio")


def line(cells: Iterable[str]) -> str:
    """One row as text."""
    return "".join(f"{cell:>10}" for cell in cells)


def markdown(results: Iterable[Comparison]) -> str:
    """The table as Markdown, with the machine's description."""
    rows = [HEADS, *(result.cells() for result in results)]
    return "\n".join([*markdown_table(rows, names=2), "", f"Machine: {summary()}.", ""])


# Run in a small interpreter of its own: Linux counts the memory of the process that spawns a
# command into the command's peak, and this one has NumPy loaded.
_RUNNER = """
import os, sys, time
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
start = time.perf_counter()
process = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(process, 0)
print(time.perf_counter() - start, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""


def measure(words: list[str]) -> Command:
    """Run a command that must succeed; its output is dropped."""
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _RUNNER, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    wall, peak_kib, exit_code = result.stdout.split()
    if exit_code != "0":
        raise RuntimeError(f"{' '.join(words)} failed with {exit_code}: {result.stderr.strip()}")
    return Command(float(wall), int(peak_kib) * 1024)


def _best(runs: list[Command]) -> Command:
    return Command(min(run.wall_s for run in runs), min(run.peak_rss_bytes for run in runs))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "k", type=log2, nargs="+", action=Distinct, help="binary logarithms of the domains"
    )
    parser.add_argument("--curve", choices=CURVES, nargs="+", action=Distinct, default=["bn128"])
    parser.add_argument("--rounds", type=count, default=3, help="runs of each (default: 3)")
    add_result_options(parser)
    arguments = parser.parse_args()
    results = []
    try:
        snarkjs = snarkjs_command()
        print(summary())
        print(line(HEADS))
        for curve in arguments.curve:
            for k in arguments.k:
                with tempfile.TemporaryDirectory() as folder:
                    one = compare(CURVES[curve], k, arguments.rounds, Path(folder), snarkjs)
                results.append(one)
                print(line(one.cells()), flush=True)
    except RuntimeError as error:  # no Node, or a command that failed
        print(f"peers: {error}", file=sys.stderr)
        return 1
    figures = [{**asdict(result), "speedup": result.speedup} for result in results]
    content = {"rounds": arguments.rounds, "results": figures}
    write_results(arguments, content, markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
