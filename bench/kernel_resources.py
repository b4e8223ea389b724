"""Registers, local memory and spills of every kernel of the CUDA backend, without a GPU.

    python -m bench.kernel_resources [--architecture sm_90] [--match msm]

Compiles with the NVRTC of the wheel nvidia-cuda-nvrtc (part of the extra "test") what the backend
compiles at run time. Takes up to a minute a program.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import itertools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prover.backends.cuda import program
from prover.curves import CURVES

Compiler = Callable[[str, list[str]], str]
"""Compiles a source with options, and returns what it says of it; raises RuntimeError with that if
it does not compile."""

_ENTRY = re.compile(
    r"'(?P<name>\w+)'.*?(?P<stack>\d+) bytes stack frame.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")


@dataclass(frozen=True)
class Kernel:
    """What a kernel takes; bytes a thread.

    Attributes
    ----------
    local
        Of its stack, arrays and spills among it.
    spilled
        Stored and loaded for want of registers, in the functions that it calls, too.
    """

    name: str
    registers: int
    local: int
    spilled: int


def resources(
    compiler: Compiler, architecture: str, match: str = ""
) -> Iterator[tuple[str, list[Kernel]]]:
    """The kernels of every program whose file's name contains ``match``, by title.

    That names the file, the curve and, where kernels are of one, the group. All programs are
    compiled side by side.
    """
    wanted = options(architecture)
    sources = _programs(match)
    if not sources:
        raise ValueError(f"no program's file has {match!r} in its name")
    with ThreadPoolExecutor() as pool:
        logs = pool.map(lambda source: compiler(source, wanted), sources.values())
        for title, log in zip(sources, logs, strict=True):
            _, *parts = log.split("Compiling entry function ")
            if not parts:
                raise ValueError(f"the compiler's log of {title} tells of no kernel:\n{log}")
            yield title, [_kernel(part) for part in reversed(parts)]


def options(architecture: str) -> list[str]:
    """Those of the backend, CuPy's own, and that the assembler tells what kernels take."""
    return [
        *program.OPTIONS,
        f"--gpu-architecture={architecture}",
        "--ptxas-options=-v",
        "--device-as-default-execution-space",
    ]


def anew(version: tuple[int, int]) -> list[str]:
    """What makes NVRTC of this version compile.

    From 12.9 on it looks among the results that the driver keeps, and says nothing of those.
    """
    return ["--no-cache"] if version >= (12, 9) else []


def _kernel(log: str) -> Kernel:
    """What the compiler says of a kernel, and after it of the functions that it calls."""
    entry = _ENTRY.match(log)
    if entry is None:
        raise ValueError(f"the compiler's log tells of no registers:\n{log}")
    spilled = sum(map(int, _SPILLS.findall(log)))
    return Kernel(entry["name"], int(entry["registers"]), int(entry["stack"]), spilled)


def _programs(match: str) -> dict[str, str]:
    out = {}
    for path in sorted(path for path in program.HERE.glob("*.cu") if match in path.name):
        groups = (1, 2) if "F>" in path.read_text(encoding="utf-8") else (None,)
        for curve, group in itertools.product(CURVES, groups):
            title = f"{path.name} {curve}" + (f" G{group}" if group else "")
            out[title] = program.source_of(curve, path, group)
    return out


def lines(title: str, kernels: list[Kernel]) -> list[str]:
    """A table of one program."""
    head = f"{title:<34}{'registers':>10}{'local bytes':>12}{'spilled':>9}"
    return [
        head,
        *(f"  {k.name:<32}{k.registers:>10}{k.local:>12}{k.spilled:>9}" for k in kernels),
    ]


def wheel() -> Compiler:
    """NVRTC of the wheel; it needs no GPU."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvrtc") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths = [Path(str(f.locate())) for f in files if re.match(r"libnvrtc.*\.so", f.name)]
    for path in paths:
        if path.name.startswith("libnvrtc-builtins.so"):  # the other one looks for it
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    if not paths:
        raise RuntimeError("NVRTC's wheel is missing: pip install nvidia-cuda-nvrtc")
    library = ctypes.CDLL(str(next(p for p in paths if p.name.startswith("libnvrtc.so"))))
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    always = anew((major.value, minor.value))

    def compile_one(source: str, options: list[str]) -> str:
        options = [*options, *always]
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

    return compile_one


def of_cupy() -> tuple[Compiler, str]:
    """NVRTC that CuPy uses, and the architecture of the current device, or the last it knows."""
    import cupy
    from cupy.cuda import nvrtc

    always = anew(nvrtc.getVersion())

    def compile_one(source: str, options: list[str]) -> str:
        handle = nvrtc.createProgram(source, "k.cu", [], [])
        try:
            nvrtc.compileProgram(handle, [*options, *always])
        except nvrtc.NVRTCError:
            raise RuntimeError(nvrtc.getProgramLog(handle)) from None
        else:
            return str(nvrtc.getProgramLog(handle))
        finally:
            nvrtc.destroyProgram(handle)

    capability = int(cupy.cuda.Device().compute_capability)
    return compile_one, f"sm_{min(capability, max(nvrtc.getSupportedArchs()))}"


def main() -> None:
    """Print a table a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--architecture", default="sm_90")
    parser.add_argument("--match", default="", help="only files whose name contains this")
    arguments = parser.parse_args()
    try:
        for title, kernels in resources(wheel(), arguments.architecture, arguments.match):
            print("\n".join(lines(title, kernels)), flush=True)
    except (RuntimeError, ValueError) as error:
        parser.error(str(error).strip())


if __name__ == "__main__":
    main()
