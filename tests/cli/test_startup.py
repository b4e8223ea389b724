"""How bigmem comes into a program, and stays out of it."""

import ast
import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import numpy
import pytest

from bigmem.cli import _launch

OTHERS = [
    path
    for version in ("2.7", *(f"3.{minor}" for minor in range(4, 11)))
    for path in (
        shutil.which(f"python{version}"),
        *Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(
            f"versions/{version}.*/bin/python"
        ),
    )
    if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
]


@pytest.mark.parametrize(
    "statement",
    [
        "import numpy.linalg",
        "import bigmem",
        "import sys; sys.modules['numpy._globals'] = None\n"
        "try: import numpy\n"
        "except ImportError: del sys.modules['numpy._globals']\n"
        "import numpy",
        "import importlib.util, sys\n"
        "spec = importlib.util.find_spec('numpy')\n"
        "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
        "numpy = sys.modules['numpy'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(numpy)\n",
        "import os; os.environ.clear()",
        "import sys; sys.meta_path.insert(0, type('Idle', (), {'find_spec': lambda *_: None}))\n",
    ],
)
def test_ways_to_import(programs, statement):
    assert programs.output(f"{statement}\nprint(count())") == "1\n"


def test_numpy_that_is_there_before_us(programs):
    # As a .pth file may have it. Here Python starts without `site`, which is run afterwards.
    site_packages = str(Path(numpy.__file__).parents[1])
    code = f"""
import sys
sys.path.append({site_packages!r})
import numpy
import site
site.main()
{programs.counting}
print(count())
"""
    words, environment = programs.started("-c", code)
    done = programs.finish(programs.start([words[0], "-S", *words[1:]], environment))
    assert done == (0, "1\n", "")


def test_a_program_can_still_change_what_numpys_libraries_read(programs):
    # NumPy asks for huge pages above 4 MiB unless it is told otherwise before it is imported.
    programs.write(
        "a.py",
        """
        import os
        os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"
        from numpy._core import multiarray
        print(multiarray._get_madvise_hugepage())
        """,
    )
    assert programs.same("a.py").out == "False\n"


def test_a_program_called_bigmem(programs):
    program = """
    import sys
    sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
    import numpy
    print("once", numpy.ones(3).sum())
    """
    done = programs.hooked(programs.write("bigmem.py", program))
    path = programs.folder / "bigmem.py"
    assert done == (
        0,
        "once 3.0\n",
        f"bigmem: the program runs without the hook: ImportError: {path} has the same name\n",
    )


def test_a_failing_allocator_is_told_in_a_line(programs):
    words, environment = programs.started("-c", "import numpy; print(numpy.ones(1 << 20).sum())")
    environment["BIGMEM_STARTUP"] = '{"allocator": "no\\nsuch"}'
    done = programs.finish(programs.start(words, environment))
    assert (done.code, done.out) == (0, "1048576.0\n")
    assert re.fullmatch(r"bigmem: the program runs without the hook: .*no.*such.*\n", done.err)
    code = "import os, sys; os.close(2); sys.stderr = None; import numpy; print(numpy.ones(2))"
    words[-1] = code
    assert programs.finish(programs.start(words, environment)) == (0, "[1. 1.]\n", "")


def test_a_run_inside_a_run(programs):
    program = """
    import subprocess, sys
    import bigmem
    print(count(), bigmem.get_allocator().name, [p for p in sys.path if "startup" in p], flush=True)
    if len(sys.argv) < 2:
        words = "-m", "bigmem", "run", "--allocator", "deferred"
        subprocess.run([sys.executable, *words, *sys.argv, "inner"], check=True)
    """
    assert programs.output(program) == "1 recycle []\n1 deferred []\n"


def test_a_run_inside_the_run_of_another_bigmem(programs):
    theirs = programs.folder / "bigmem" / "cli" / "startup"
    shutil.copytree(_launch.STARTUP, theirs)
    program = """
    import sys
    ours = "startup" in getattr(sys.modules.get("sitecustomize"), "__file__", "")
    print(count(), [p for p in sys.path if "startup" in p], ours)
    print([type(finder).__module__ for finder in sys.meta_path].count("_bigmem_watch"))
    """
    output = programs.output(program, env={"PYTHONPATH": str(theirs)})
    assert output == "1 [] False\n1\n"


def test_an_environment_without_bigmem(programs):
    venv.create(programs.folder / "venv")
    programs.write("numpy/__init__.py", "ones = list")
    python = str(programs.folder / "venv" / "bin" / "python")
    assert programs.same("-c", "import numpy, sys; print(sys.path)", python=python).code == 0


@pytest.mark.parametrize("python", OTHERS)
def test_older_pythons(programs, python):
    programs.write("a.py", "import sys; print(sys.path); print(sorted(sys.modules))")
    assert programs.same("a.py", python=python).code == 0


def test_the_syntax_of_older_pythons():
    source = (_launch.STARTUP / "sitecustomize.py").read_text()
    ast.parse(source, feature_version=(3, 4))
