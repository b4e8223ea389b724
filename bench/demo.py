"""The main job: real proofs and big arrays under four release policies, in both page regimes.

    python -m bench.demo [-o demo-out] [--repeat 4] [--gib 1.5] [--steps 4]

Every run is a fresh process. Each proof is checked when it is made and once more, at the end,
from the files. Writes demo.json, demo.md and demo.png into the output folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench import command_line, machine, report
from bigmem import osmem
from prover.formats.proof_json import read_proof, read_public
from prover.verify import VerificationKey, verify

ROOT = Path(__file__).resolve().parent.parent
CIRCUIT = ROOT / "circuits" / "membership"
POLICIES = ("mapped", "dontneed", "deferred", "recycle")

console = Console()


class DemoError(Exception):
    """A step of the demo failed; the message is the line to show."""


def call(command: list[str], regime: str = "huge") -> str:
    """Run one step in a fresh process; its standard output, or `DemoError`."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=machine.regime_environment(regime),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DemoError(f"`python -m {' '.join(command)}` exited with {done.returncode}: {last}")
    return done.stdout


def make_key(out: Path) -> Path:
    """Make the circuit's key once, by the development setup."""
    key = out / "membership.zkey"
    if not key.exists():
        console.print("Making the circuit's key (development setup; not for real use) ...")
        start = time.perf_counter()
        r1cs = str(CIRCUIT / "membership.r1cs")
        call(["prover", "setup", r1cs, "-o", str(key), "--insecure-dev-key"])
        console.print(
            f"  {key.stat().st_size / machine.MIB:.1f} MiB in {time.perf_counter() - start:.1f} s"
        )
    return key


def prove(key: Path, policy: str, regime: str, repeat: int, out: Path) -> dict[str, Any]:
    """Prove every shipped witness `repeat` times under one policy, in one process."""
    folder = out / "proofs" / f"{regime.replace(' ', '')}-{policy}"
    figures = folder.with_suffix(".json")
    folder.mkdir(parents=True, exist_ok=True)
    witnesses = sorted(str(p) for p in CIRCUIT.glob("*.wtns"))
    call(
        ["prover", "batch", str(key), *witnesses, "--allocator", policy, "--repeat", str(repeat),
         "-o", str(folder), "--json", str(figures)],
        regime,
    )  # fmt: skip
    return {"regime": regime, **json.loads(figures.read_text())}


def verify_all(key: Path, runs: Iterable[dict[str, Any]], out: Path) -> int:
    """Verify every proof that the runs wrote, from its files; their number."""
    vk_path = out / "membership.vk.json"
    call(["prover", "export-vk", str(key), str(vk_path)])
    vk = VerificationKey.from_json(vk_path)
    made = [one for run in runs for one in run["each"]]
    for one in made:
        public, proof = read_public(one["public"], vk.curve), read_proof(one["proof"], vk.curve)
        if not verify(vk, public, proof):
            raise DemoError(f"{one['proof']} does not verify")
    return len(made)


def run(out: Path, repeat: int, gib: float, steps: int) -> dict[str, object]:
    """Everything, in order; the results as written to demo.json."""
    available = osmem.available_bytes()
    wanted = int(2.5 * gib * machine.GIB)
    if available < wanted:
        raise DemoError(
            f"the array panel wants {wanted / machine.GIB:.1f} GiB of free memory and this machine "
            f"has {available / machine.GIB:.1f}; make it smaller: python -m bench.demo --gib 0.5"
        )
    out.mkdir(parents=True, exist_ok=True)
    key = make_key(out)
    proofs, panels = [], []
    with Progress(console=console) as progress:
        task = progress.add_task("", total=2 * len(machine.REGIMES) * len(POLICIES))
        for regime in machine.REGIMES:
            for policy in POLICIES:
                progress.update(task, description=f"{regime} pages, {policy}: proofs")
                proofs.append(prove(key, policy, regime, repeat, out))
                progress.advance(task)
                progress.update(task, description=f"{regime} pages, {policy}: arrays")
                # Right before, in the same pages: no run pays the host for memory it never gave.
                call(["bench.machine", str(wanted)], regime)
                command = ["bench.panel", "--allocator", policy,
                           "--gib", str(gib), "--steps", str(steps)]  # fmt: skip
                panels.append({"regime": regime, **json.loads(call(command, regime))})
                progress.advance(task)
    verified = verify_all(key, proofs, out)
    for one in proofs:
        del one["each"]  # names files of this machine
    return {
        "machine": machine.describe(),
        "proofs_verified_from_files": verified,
        "proofs": proofs,
        "arrays": panels,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("-o", "--out", type=command_line.folder, default="demo-out")
    parser.add_argument(
        "--repeat", type=command_line.count, default=4, help="proofs of each witness in a run"
    )
    parser.add_argument(
        "--gib", type=command_line.gib, default=1.5, help="arrays of one step of the panel"
    )
    parser.add_argument("--steps", type=command_line.count, default=4, help="steps of the panel")
    args = parser.parse_args()
    start = time.perf_counter()
    try:
        results = run(args.out, args.repeat, args.gib, args.steps)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    results["demo_s"] = time.perf_counter() - start
    report.write(results, args.out)
    report.show(results, console)
    console.print(
        f"{results['proofs_verified_from_files']} proofs verified from their files; "
        f"{results['demo_s']:.0f} s in all. "
        f"Written: {args.out}/demo.json, demo.md, demo.png"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
