"""The example of a plug-in, installed as its users would install it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "plugin"
Python = Callable[..., str]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Runs Python where the plug-in is installed; it must exit with 0."""
    target = tmp_path_factory.mktemp("site")

    def run(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(target), **environment},
            cwd=target,
            check=False,
            timeout=120,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(
        *("-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--no-deps"),
        *("--no-build-isolation", "--target", str(target), str(PLUGIN)),
    )
    return run


def test_make_finds_it_by_name(python: Python) -> None:
    program = """
import bigmem
import numpy as np
allocator = bigmem.make("shared")
array = bigmem.full(1 << 20, 3.0, allocator=allocator)
print(type(allocator).__module__, type(allocator).__name__, array.sum() == 3 << 20)
"""
    assert python("-c", program).split() == ["bigmem_shared", "SharedAllocator", "True"]


def test_the_environment_and_the_command_line_name_it(python: Python, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import numpy as np
from bigmem import get_allocator, live_blocks
array = np.ones(1 << 20)
print(get_allocator().name, sum(block.allocator == get_allocator().name for block in live_blocks()))
""")
    run = ("-m", "bigmem", "run")
    assert python(*run, "--allocator", "shared", str(script)) == "SharedAllocator 1\n"
    assert python(*run, str(script), BIGMEM_ALLOCATOR="shared") == "SharedAllocator 1\n"


def test_an_unknown_name_lists_it(python: Python) -> None:
    program = """
import bigmem
try:
    bigmem.make("shard")
except bigmem.BigmemError as error:
    print(error)
"""
    assert "recycle, shared, system" in python("-c", program)


# Packages as pip leaves them: the metadata that names an entry point, and perhaps the module.


def installed(folder: Path, distribution: str, entry: str, module: str = "") -> None:
    metadata = folder / f"{distribution}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(f"[bigmem.allocators]\n{entry}\n")
    if module:
        (folder / f"{distribution}.py").write_text(module)


def said_of(folder: Path, name: str, *, as_default: bool = False) -> tuple[str, str]:
    """What a process says that makes an allocator of that name: its output, and its warnings."""
    call = "bigmem.get_allocator()" if as_default else f"bigmem.make({name!r})"
    program = f"""
import bigmem
for _ in range(2):
    try:
        print({call}.name)
    except bigmem.BigmemError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(folder), "BIGMEM_ALLOCATOR": name},
        cwd=folder,
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    first, second = done.stdout.splitlines()
    assert first == second
    return first, done.stderr


def test_a_name_that_two_distributions_register_is_refused(tmp_path: Path) -> None:
    making = "import bigmem\ndef make():\n    return bigmem.SystemAllocator(name=__name__)\n"
    for distribution in ("one", "two"):
        installed(tmp_path, distribution, f"ours = {distribution}:make", making)
    installed(tmp_path, "three", "mine = three:make", making)
    assert said_of(tmp_path, "ours") == (
        "several plug-ins register the allocator 'ours': one:make of one and two:make of two; "
        "uninstall all but one",
        "",
    )
    assert said_of(tmp_path, "mine") == ("three", "")


def test_a_name_of_bigmems_stays_its_own_and_the_plugin_is_warned_of_once(tmp_path: Path) -> None:
    making = "import bigmem\ndef make():\n    return bigmem.SystemAllocator(name=__name__)\n"
    installed(tmp_path, "greedy", "recycle = greedy:make\nfine = greedy:make", making)
    assert said_of(tmp_path, "recycle") == ("recycle", "")
    name, warned = said_of(tmp_path, "fine")
    assert name == "greedy"
    assert warned == (
        "the plug-in greedy:make of greedy registers the allocator 'recycle', a name that is "
        "bigmem's own: it cannot be had until it has another\n"
    )


@pytest.mark.parametrize("as_default", [False, True])
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("", "fails: ModuleNotFoundError: No module named 'broken'"),
        ("pass", "fails: AttributeError: module 'broken' has no attribute 'make'"),
        ("def make():\n    return 1 / 0", "fails: ZeroDivisionError: division by zero"),
        ("def make():\n    raise SystemExit(3)", "fails: SystemExit: 3"),
        ("import sys\nsys.exit('no licence')", "fails: SystemExit: no licence"),
        ("def make():\n    return 1", "made no bigmem.Allocator"),
    ],
)
def test_a_plugin_that_fails_is_told(
    tmp_path: Path, module: str, reason: str, as_default: bool
) -> None:
    installed(tmp_path, "broken", "odd = broken:make", module)
    told, _ = said_of(tmp_path, "odd", as_default=as_default)
    assert told == f"the plug-in broken:make of broken {reason}"


def test_it_passes_its_own_tests_the_contract_among_them(python: Python) -> None:
    said = python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLUGIN))
    assert "failed" not in said
    passed = int(said.splitlines()[-1].split(" passed")[0].split()[-1])
    assert passed > 40
