"""Registers, local memory and spills of every CUDA kernel, without a GPU.

    python scripts/kernel_report.py [--architecture sm_90] [--match msm]

Compiles with the NVRTC of the wheel nvidia-cuda-nvrtc (part of the extra "test") what the CUDA
backend compiles at run time. Takes a minute a program.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prover.backends.cuda import program
from prover.curves import CURVES

ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


def nvrtc() -> ctypes.CDLL:
    """The library of the wheel, and the one beside it that it looks for."""
    files = importlib.metadata.files("nvidia-cuda-nvrtc") or []
    paths = [Path(str(f.locate())) for f in files if re.match(r"libnvrtc.*\.so", f.name)]
    for path in paths:
        if path.name.startswith("libnvrtc-builtins.so"):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(next(p for p in paths if p.name.startswith("libnvrtc.so"))))


def log_of(library: ctypes.CDLL, source: str, architecture: str) -> str:
    """What the compiler says of a program.

    Raises
    ------
    RuntimeError
        With its words, if it does not compile.
    """
    options = [*program.OPTIONS, f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
    options.append("--device-as-default-execution-space")
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    handle = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(handle), source.encode(), b"k.cu", 0, None, None)
    result = library.nvrtcCompileProgram(handle, len(options), encoded)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(handle, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(handle, log)
    library.nvrtcDestroyProgram(ctypes.byref(handle))
    text = log.value.decode()
    if result != 0:
        raise RuntimeError(text)
    return text


def programs(match: str) -> dict[str, str]:
    """Source by title of every program whose file's name contains ``match``."""
    out = {}
    for path in sorted(path for path in program.HERE.glob("*.cu") if match in path.name):
        groups = (1, 2) if "F>" in path.read_text(encoding="utf-8") else (None,)
        for curve, group in itertools.product(CURVES, groups):
            title = f"{path.name} {curve}" + (f" G{group}" if group else "")
            out[title] = program.source_of(curve, path, group)
    return out


def main() -> None:
    """Print a table a program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--architecture", default="sm_90")
    parser.add_argument("--match", default="", help="only files whose name contains this")
    options = parser.parse_args()
    library = nvrtc()
    sources = programs(options.match)
    with ThreadPoolExecutor() as pool:
        logs = pool.map(lambda s: log_of(library, s, options.architecture), sources.values())
        for title, log in zip(sources, logs, strict=True):
            print(f"{title:<34}{'registers':>10}{'local bytes':>12}{'spilled':>9}", flush=True)
            for entry in reversed(list(ENTRY.finditer(log))):
                spilled = int(entry["stores"]) + int(entry["loads"])
                print(
                    f"  {entry['name']:<32}{entry['registers']:>10}{entry['stack']:>12}{spilled:>9}"
                )


if __name__ == "__main__":
    main()
