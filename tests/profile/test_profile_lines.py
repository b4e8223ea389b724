"""Which line of a program an allocation is put down to."""

import os
import sys
import sysconfig
from pathlib import Path

import pytest
from profiled import profiled

from bigmem.cli import _launch
from bigmem.profile.record import Record


def places(record: Record) -> dict[tuple[str, int], int]:
    return {(Path(line.file).name, line.line): line.calls for line in record.lines}


def test_lines_of_the_program_under_the_python_code_of_numpy():
    record, _ = profiled(
        """\
        import numpy as np
        n = 1 << 18
        a = np.ones(n)
        b = np.full(n, 2.0)
        c = a + b
        d = np.concatenate([a, b])
        e = np.apply_along_axis(lambda row: np.ones(n)[:1], 0, np.ones((2, 1)))
        f = np.sort(a)
        g = np.vstack([a, a])
        """
    )
    assert set(places(record)) == {("<string>", number) for number in range(3, 10)}


def test_modules_threads_generators_and_code_made_on_the_fly(tmp_path: Path):
    (tmp_path / "helper.py").write_text(
        "import numpy as np\n\ndef make(n):\n    return np.ones(n)\n"
    )
    (tmp_path / "main.py").write_text(
        """\
import threading
import asyncio
import numpy as np
import helper
N = 1 << 18
helper.make(N)
thread = threading.Thread(target=lambda: np.ones(N))
thread.start()
thread.join()
def generator():
    for _ in range(2):
        yield np.zeros(N)
list(generator())
async def coroutine():
    return np.ones(N)
asyncio.run(coroutine())
sorted([1], key=lambda _: np.ones(N).sum())
exec(compile("np.ones(N)", "made.py", "exec"))
class Held:
    def __del__(self):
        self.last = np.ones(N)
held = Held()
del held
"""
    )
    record, _ = profiled("", "main.py", folder=tmp_path)
    assert places(record) == {
        ("helper.py", 4): 1,
        ("main.py", 7): 1,
        ("main.py", 12): 2,
        ("main.py", 15): 1,
        ("main.py", 17): 1,
        ("made.py", 1): 1,
        ("main.py", 21): 1,
    }
    assert all(Path(line.file).is_absolute() for line in record.lines if line.file != "made.py")


def test_a_library_is_named_only_where_no_line_of_the_program_is_to_blame():
    record, _ = profiled(
        """\
        import copy, threading
        import numpy as np
        a = np.ones(1 << 18)
        b = copy.deepcopy([a, a + 1])
        thread = threading.Timer(0, copy.deepcopy, [a])
        thread.start()
        thread.join()
        """
    )
    found = places(record)
    assert found.pop(("<string>", 3)) == 1
    assert found.pop(("<string>", 4)) == 3
    ((name, _), calls) = found.popitem()
    assert (name, calls) == ("copy.py", 1)
    assert not found


INNER = """\
import copy
import numpy as np

def work():
    copy.deepcopy([np.ones(1 << 18)])
"""


@pytest.mark.parametrize("init", ["", "import numpy\n"], ids=["later", "before __main__"])
def test_a_module_that_runs_as_the_program_is_the_program(tmp_path: Path, init: str):
    """Also one that lies where libraries lie, whenever it imports NumPy."""
    libraries = tmp_path / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    package = libraries / "tool"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(init)
    (package / "inner.py").write_text(INNER)
    (package / "__main__.py").write_text("from tool import inner\n\ninner.work()\n")
    (libraries / "single.py").write_text(f"{init}{INNER}work()\n")
    path = os.pathsep.join([str(_launch.STARTUP), str(libraries)])
    env = {"PYTHONUSERBASE": str(tmp_path), "PYTHONPATH": path}
    for module in ("tool", "tool.__main__"):
        record, _ = profiled("", "-m", module, env=env)
        assert places(record) == {("inner.py", 5): 2}
    record, _ = profiled("", "-m", "single", env=env)
    assert places(record) == {("single.py", 6 if init else 5): 2}
    # In a program that only uses it, the program's line is named.
    record, _ = profiled("from tool import inner\n\n\ninner.work()", env=env)
    assert places(record) == {("<string>", 4): 2}


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with all that ours has."""
    folder = tmp_path / "environment"
    libraries = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    libraries.mkdir(parents=True)
    ours = sysconfig.get_path("purelib")
    (libraries / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(Path(sys.executable).resolve())
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    return folder


def test_a_script_is_the_program_wherever_it_lies(environment: Path):
    (environment / "bin/s.py").write_text(f"{INNER}work()\n")
    python = environment / "bin/python"
    for folder, script in ((environment, "bin/s.py"), (None, str(environment / "bin/s.py"))):
        record, _ = profiled("", script, folder=folder, python=python)
        assert places(record) == {("s.py", 5): 2}
    moved = "import os\nos.chdir('/')\n"
    (environment / "bin/s.py").write_text(f"{moved}{INNER}work()\n")
    record, _ = profiled("", "s.py", folder=environment / "bin", python=python)
    assert places(record) == {("s.py", 7): 2}
    (environment / "bin/app").mkdir()
    (environment / "bin/app/inner.py").write_text(INNER)
    (environment / "bin/app/__main__.py").write_text("import inner\ninner.work()\n")
    record, _ = profiled("", "bin/app", folder=environment, python=python)
    assert places(record) == {("inner.py", 5): 2}


def test_the_package_of_a_command_is_the_program(environment: Path):
    """Else all that it does would be the work of the one line that calls it."""
    (libraries,) = environment.glob("lib/*/site-packages")
    (libraries / "tool").mkdir()
    (libraries / "tool/__init__.py").touch()
    (libraries / "tool/inner.py").write_text(INNER)
    (libraries / "tool-1.dist-info").mkdir()
    (libraries / "tool-1.dist-info/METADATA").write_text("Name: tool\nVersion: 1\n")
    points = "[console_scripts]\nwork = tool.inner:work\n"
    (libraries / "tool-1.dist-info/entry_points.txt").write_text(points)
    call = "import sys\nfrom tool.inner import work\nsys.exit(work())\n"
    for name, place in (("work", ("inner.py", 5)), ("another", ("another", 3))):
        (environment / "bin" / name).write_text(call)
        record, _ = profiled(
            "", f"bin/{name}", folder=environment, python=environment / "bin/python"
        )
        assert places(record) == {place: 2}


def test_a_path_that_is_no_utf_8(tmp_path: Path):
    name = os.fsdecode(b"m\xff.py")
    (tmp_path / name).write_text(
        f"{INNER}work()\nexec(compile('np.ones(1 << 18)', '\\ud800', 'exec'))"
    )
    record, _ = profiled("", name, folder=tmp_path)
    assert {(line.file, line.line): line.calls for line in record.lines} == {
        (str(tmp_path / name), 5): 2,
        ("\ud800", 1): 1,
    }


def test_programs_that_compile_code_without_end():
    record, _ = profiled(
        """\
        import numpy as np
        for i in range(21_000):
            exec(compile("", f"file{i}", "exec"))
        for i in range(300):
            exec(compile("np.empty(1 << 18)", "one.py", "exec"))
        for i in range(9000):
            exec(compile("np.empty(1 << 15)", f"{i}.py", "exec"))
        """
    )
    found = places(record)
    assert found[("one.py", 1)] == 300
    assert sum(found.values()) == 9300
    assert found[("", 0)] > 0  # what no longer has a row of its own


def test_an_exception_in_flight_survives():
    record, printed = profiled(
        """
        import numpy as np
        class Noisy:
            def __del__(self):
                np.ones(1 << 18)
        try:
            try:
                raise KeyError(1)
            finally:
                np.ones(1 << 18)
        except KeyError as error:
            print(repr(error))
        def f():
            noisy = Noisy()
            raise ValueError(2)
        try:
            f()
        except ValueError as error:
            print(repr(error))
        """
    )
    assert printed == ["KeyError(1)", "ValueError(2)"]
    assert sum(places(record).values()) == 2
