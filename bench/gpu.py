"""Transforms, sums, whole proofs and commands on a GPU: checked first, then timed.

    python -m bench.gpu --json FILE --markdown FILE

Times are medians, of GPU work by CUDA events. What fails is told, and the rest goes on; the exit
code is then 1. After `--seconds`, no further measurement is begun, before that no large proof that
would end later. The tables tell what is left out for want of time, or of memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import command_line, gpu_checks, gpu_commands, gpu_msm, gpu_times, machine
from bench.gpu_run import Run, describe_gpu, gpu_line
from prover.backends.cuda.device import Device
from prover.backends.cuda.program import HERE, compiled
from prover.curves import CURVES
from prover.errors import UnavailableBackend

PROGRAMS = [
    *((HERE / file, None) for file in ("sort.cu", "scalars.cu")),
    *((HERE / file, group) for file in ("msm.cu", "fixed_base.cu") for group in (1, 2)),
    *((gpu_msm.BENCH_KERNELS, group) for group in (1, 2)),
    (gpu_times.PRODUCTS, None),
]

Part = tuple[str, Callable[[], None]]


def compile_all() -> None:
    """Fill CuPy's cache of compiled programs, all side by side."""
    started = [
        subprocess.Popen([sys.executable, "-m", "bench.gpu", "--compile", curve, str(number)])
        for curve in CURVES
        for number in range(len(PROGRAMS))
    ]
    failed = sum(process.wait() != 0 for process in started)
    if failed:
        raise RuntimeError(f"{failed} of {len(started)} programs could not be compiled")


def checks(run: Run, folder: Path) -> list[Part]:
    """Everything against the CPU."""
    return [
        ("check transforms", lambda: gpu_checks.check_transforms(run, 18)),
        ("check large transforms", lambda: gpu_checks.check_large_transforms(run, 27)),
        ("check matrices", lambda: gpu_checks.check_matrices(run)),
        ("check sums", lambda: gpu_msm.check_sums(run)),
        ("check proofs", lambda: gpu_checks.check_proofs(run, [13])),
        ("check limits", lambda: gpu_checks.check_limits(run)),
        ("check keys", lambda: gpu_checks.check_keys(run, folder)),
    ]


def times(run: Run, folder: Path) -> list[Part]:
    """What the pages in docs/ show; first what they need most, last what takes long."""
    return [
        ("rates", lambda: gpu_msm.measure_rates(run)),
        ("ceilings", lambda: gpu_times.measure_ceilings(run)),
        ("transforms", lambda: gpu_times.measure_transforms(run, [16, 18, 20, 22, 24])),
        ("sums in G1", lambda: gpu_msm.measure_sums(run, 1, [16, 18, 20, 22, 24])),
        ("sums in G2", lambda: gpu_msm.measure_sums(run, 2, [16, 18, 20, 22])),
        ("proofs", lambda: gpu_times.measure_proofs(run, [16, 18, 20, 22], [12, 14])),
        ("matrices", lambda: gpu_times.measure_matrices(run, [20])),
        ("commands", lambda: gpu_commands.measure_commands(run, folder, [14, 16, 17, 18])),
        ("workers", lambda: gpu_commands.measure_workers(run, folder, 18, 40)),
        ("large", lambda: gpu_commands.measure_large(run, folder, 22)),
        ("large sums in G2", lambda: gpu_msm.measure_sums(run, 2, [24])),
        ("large transforms", lambda: gpu_times.measure_transforms(run, [27])),
        ("large proofs", lambda: gpu_times.measure_proofs(run, [24], [])),
        ("kernels", lambda: gpu_times.kernel_report(run)),
    ]


def main() -> int:
    """Check, measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seconds", type=command_line.amount, default=400, help="begin nothing after these"
    )
    parser.add_argument("--sweep", action="store_true", help="time other windows, nothing else")
    parser.add_argument("--only", nargs="+", action=command_line.Distinct, default=[],
                        metavar="PART", help="parts by name")  # fmt: skip
    parser.add_argument("--compile", nargs=2, help=argparse.SUPPRESS)
    command_line.add_result_options(parser)
    options = parser.parse_args()
    if options.compile:
        path, group = PROGRAMS[int(options.compile[1])]
        compiled(options.compile[0], path, group)
        return 0
    # It would have every command of the prover's compile anew, within its time.
    os.environ.pop("CUPY_CACHE_IN_MEMORY", None)
    try:
        device = Device(notify=lambda line: print(line, flush=True))
    except UnavailableBackend as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
    run = Run(device, options.seconds)
    run.figures["gpu"] = describe_gpu()
    run.figures["uploads"] = device.uploads
    print(run.figures["gpu"], f"uploads: {device.uploads}", sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: list[Part] = [("compile", compile_all)]
        if options.sweep:
            parts.append(("windows", lambda: gpu_msm.sweep_windows(run, [16, 18, 20, 22])))
        else:
            parts += [*checks(run, folder), *times(run, folder)]
        unknown = set(options.only) - {title for title, _ in parts}
        if unknown:
            parser.error(f"no part is called {' or '.join(sorted(unknown))}")
        for title, part in parts:
            if options.only and title != "compile" and title not in options.only:
                continue
            start = time.perf_counter()
            with run.part(title), device.use():
                part()
            device.free_unused()
            print(f"-- {title}: {time.perf_counter() - start:.1f} s", flush=True)
            run.figures["checks"] = {"made": run.checked, "failed": run.failures}
            page = machine.markdown_page(run.tables, gpu_line(run.figures["gpu"]))
            command_line.write_results(options, run.figures, page)
    print(f"{run.checked} checks; failures: {run.failures or 'none'}", flush=True)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
