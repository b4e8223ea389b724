"""The code blocks of the pages, and how to run them.

A block of Python or of shell commands is run unless a comment before it says what it needs that not
every machine has, and why it needs that:

    <!-- needs a GPU: pinned memory is page-locked by its driver -->

`NEEDS` are the things that can be needed; several are separated by commas. Another comment makes
an example smaller where it is run by tests:

    <!-- tested with 1 << 20 for 1 << 27 -->

or puts what people start elsewhere into the background, its output into a file: it is killed when
the block has ended, and nobody waits for it. `$PORT` is a port that nobody listens on.
CONTRIBUTING.md lists what is needed, and where it is run that needs it.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "bn128" / "multiplier"

# tests/gpu has a GPU, tests/libraries/large the packages.
PACKAGES = ("torch",)
NEEDS = (
    "a GPU",
    "several GPUs",
    "a network",
    "a container engine",
    "minutes",
    *PACKAGES,
)
SHELL = ("sh", "bash")
DATA = ("json", "toml")
OUTPUT = ("", "text")

_FENCE = re.compile(
    r"(?P<comments>(?:^<!--[^\n]*-->\n)*)^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_TICKS = re.compile(r"^[ \t>]*(?:```|~~~)", re.MULTILINE)
_TROUBLE = re.compile(r"Warning|Traceback|Exception ignored")
_NEEDS = re.compile(r"<!-- needs (?P<what>[^:\n]*)(?::(?P<why>[^\n]*))?-->")
_SMALLER = re.compile(r"<!-- tested with (?P<new>[^\n]+?) for (?P<old>[^\n]+?) -->")


class Faulty(ValueError):
    """A block that says of itself what cannot be."""


@dataclass(frozen=True)
class Block:
    """A code block: where it is, what it needs, and its code as tests run it."""

    page: str
    line: int
    language: str
    code: str
    needs: frozenset[str]

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """The pages whose blocks are run, relative to the repository."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def blocks_of(page: str, text: str | None = None) -> list[Block]:
    """The code blocks of a page; `Faulty` if one is not what it should be."""
    text = (ROOT / page).read_text(encoding="utf-8") if text is None else text
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        where = f"{page}:{line}"
        language, code = match["language"].strip(), match["code"]
        if language.startswith("{"):  # a directive of the site's
            continue
        if language not in ("python", *SHELL, *DATA, *OUTPUT):
            raise Faulty(f"{where}: a block of {language}: python, sh, json, toml or text?")
        for smaller in _SMALLER.finditer(match["comments"]):
            if smaller["old"] not in code:
                raise Faulty(f"{where}: there is no {smaller['old']} to make smaller")
            code = code.replace(smaller["old"], smaller["new"])
        found.append(Block(page, line, language, code, _needs(where, match["comments"])))
    if len(_TICKS.findall(text)) != 2 * len(_FENCE.findall(text)):
        raise Faulty(f"{page}: a fence that is not closed, indented or of other ticks")
    return found


def collect() -> tuple[list[Block], list[str]]:
    """All blocks of all pages, and what is wrong with the pages whose blocks cannot be told."""
    found: list[Block] = []
    faults: list[str] = []
    for page in pages():
        try:
            found += blocks_of(page)
        except Faulty as fault:
            faults.append(str(fault))
    return found, faults


def _needs(where: str, comments: str) -> frozenset[str]:
    needs: set[str] = set()
    for marker in _NEEDS.finditer(comments):
        if not (marker["why"] or "").strip():
            raise Faulty(f"{where}: why does it need {marker['what'].strip()}?")
        needs |= {what.strip() for what in marker["what"].split(",")}
    if unknown := needs - set(NEEDS):
        raise Faulty(f"{where}: nobody knows how to have {', '.join(sorted(unknown))}")
    return frozenset(needs)


def program_of(blocks: list[Block]) -> str:
    """The Python blocks of a page as one program, each line where it is on the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.code.splitlines()
    return "\n".join(lines) + "\n"


def run_python(blocks: list[Block], folder: Path) -> str:
    """Run the blocks in one namespace; return what they print. They must end well, unwarned."""
    path = folder / blocks[0].page.replace("/", "-").replace(".md", ".py")
    path.write_text(program_of(blocks))
    done = _run([sys.executable, str(path)], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not _TROUBLE.search(done.stderr), done.stderr
    return done.stdout


def run_shell(block: Block, folder: Path) -> None:
    """Run the block's commands; the first that fails fails all."""
    done = _run(["bash", "-euo", "pipefail", "-c", block.code], folder)
    assert done.returncode == 0, f"{block.where}\n{done.stdout}{done.stderr}"


def check_data(block: Block) -> None:
    """Parse it."""
    {"json": json.loads, "toml": tomllib.loads}[block.language](block.code)


def lay_out(folder: Path) -> None:
    """Make the files that the examples name, and the commands."""
    for name in ("CIRCUIT.zkey", "CIRCUIT.r1cs"):
        shutil.copy(FIXTURE / name.lower(), folder / name)
    shutil.copy(FIXTURE / "witness.wtns", folder / "WITNESS.wtns")
    for name in ("proof", "public", "verification_key"):
        shutil.copy(FIXTURE / f"{name}.json", folder)
    (folder / "package").mkdir()
    for name in ("script.py", "program.py", "package/__main__.py"):
        (folder / name).write_text("import numpy as np\n\nprint(np.ones(1 << 20).sum())\n")
    (folder / "service.py").write_text(
        "import time\n\nimport numpy as np\n\nkept = np.ones(1 << 20)\ntime.sleep(600)\n"
    )
    (folder / "test_yours.py").write_text(
        "import numpy as np\n\n\ndef test_yours():\n    assert np.ones(9).sum() == 9\n"
    )
    for part in range(2):
        np.save(folder / f"part{part}.npy", np.arange(1 << 20))
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / "tests").symlink_to(ROOT / "tests")


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    programs = Path(sys.executable).parent
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BIGMEM_")}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**environment, "PATH": f"{programs}:{environment['PATH']}", "PORT": _free_port()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=240)
    finally:  # whatever the example has left in the background
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)
