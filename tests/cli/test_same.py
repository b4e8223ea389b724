"""A program under `bigmem run` leaves what it leaves under Python, byte by byte."""

import os
import signal
import sys
import zipfile
from pathlib import Path

import pytest

# Without what a virtual environment adds to a program: modules, and no customization for users.
BASE = str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))

# With NumPy, and so with the hook; an array of it dies as late as can be.
ARRAY = "import numpy as np\nlate = np.ones(1 << 20)\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (ARRAY + "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)", 3),
        ("import sys; sys.exit('a text')", 1),
        (ARRAY + "import sys\ndef f(x):\n    return 1 / x\nf(0)", 1),
        ("def f(:", 1),
        ("import os, sys; print('lost'); os._exit(7)", 7),
        (ARRAY + "import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        (ARRAY + "import signal\ndef f():\n    signal.raise_signal(2)\nf()", -signal.SIGINT),
        (
            f"{ARRAY}import threading\n"
            "thread = threading.Thread(target=lambda: 1 / 0)\n"
            "thread.start(); thread.join()",
            0,
        ),
        (
            "import atexit, sys\n"
            "for i in range(3): atexit.register(print, i)\n"
            "import numpy as np\n"
            "for i in range(3): atexit.register(print, 'later', i)\n"
            "class Last:\n"
            "    def __del__(self, make=np.zeros): print(make(1 << 20)[-1])\n"
            "last = Last()\n",
            0,
        ),
        (ARRAY + "print(np.ones((1 << 20, 3)) @ np.ones(4))", 1),
    ],
)
def test_outcomes(programs, text, code):
    script = programs.write("a.py", text)
    assert programs.same(script).code == code


STATE = """
import os, signal, sys
print(sys.argv, __name__, __spec__ and __spec__.name, __package__, globals().get("__file__"))
print(type(__loader__).__name__, sys.flags, sys.path, sys.orig_argv[1:])
print(sys.warnoptions, sys._xoptions, sys.stdout.encoding, sys.stdin.isatty())
print([signal.getsignal(number) for number in (2, 13, 15)], sys.path_importer_cache.keys())
print(os.getcwd(), sys.gettrace(), sorted(sys.modules.keys() - {"_bigmem_watch"}))
print({k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BIGMEM_STARTUP")})
"""
ARGUMENTS = ("-x", "--allocator", "system", "--", "--help", "")


def test_what_a_program_sees_of_itself(programs):
    programs.write("a.py", STATE)
    programs.write("package/__init__.py", "print(__name__)")
    programs.write("package/__main__.py", STATE)
    programs.write("package/inner.py", STATE)
    programs.write("folder/__main__.py", "import beside\n" + STATE)
    programs.write("folder/beside.py", "")
    with zipfile.ZipFile(programs.folder / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", STATE)
    for program in (
        ["a.py"],
        [str(programs.folder / "a.py")],
        ["-m", "package"],
        ["-m", "package.inner"],
        ["-mpackage"],
        ["folder"],
        ["app.pyz"],
        ["-c", STATE],
    ):
        assert programs.same(*program, *ARGUMENTS).code == 0
    assert programs.same("-", *ARGUMENTS, stdin=STATE).code == 0
    assert programs.same("a.py", python=BASE).code == 0


def test_standard_input(programs):
    script = programs.write(
        "a.py", f"{ARRAY}import sys\nprint(input()); print(sys.stdin.read()); input()"
    )
    done = programs.same(script, stdin="first\nsecond\nthird")
    assert done.out == "first\nsecond\nthird\n"
    assert "EOFError" in done.err


def test_what_python_refuses(programs):
    for words in (["missing.py"], ["-m", "missing"], ["-m", "os.missing"], ["-c"], ["-m"], ["."]):
        assert programs.same(*words).code in (1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "print('customized')",
        "raise ValueError('of mine')",
        "import missing",
        "raise ImportError('of mine', name='sitecustomize')",
        "import sys; sys.modules[__name__] = sys",
        "import sys; sys.path.append('/nowhere'); sys.meta_path.insert(0, sys.meta_path[-1])",
    ],
)
def test_the_users_own_customization(programs, text):
    programs.write("mine/sitecustomize.py", f"import sys; print(__file__)\n{text}")
    programs.write("a.py", "import sys; print(sys.path, sys.modules.get('sitecustomize'))")
    env = {"PYTHONPATH": f"mine{os.pathsep}{os.pathsep}{programs.folder / 'more'}"}
    done = programs.same("a.py", env=env)
    assert "sitecustomize.py\n" in done.out


def test_customization_for_a_user(programs):
    programs.write("mine/usercustomize.py", "print('for a user')")
    env = {"PYTHONPATH": "mine"}
    done = programs.same("-c", "import sys; print(sys.path)", env=env, python=BASE)
    assert "for a user" in done.out


def test_the_module_numpy(programs):
    programs.write(
        "a.py",
        """
        import importlib.metadata, importlib.resources, importlib.util, inspect, pkgutil
        print(type(importlib.util.find_spec("numpy").loader))
        import numpy
        loader = numpy.__loader__
        print(type(loader), vars(loader), loader is numpy.__spec__.loader)
        print(numpy.__loader__.get_source("numpy") == inspect.getsource(numpy), numpy.__path__)
        print(sorted(path.name for path in importlib.resources.files(numpy).iterdir()))
        print(sorted(module.name for module in pkgutil.iter_modules(numpy.__path__)))
        print(importlib.metadata.version("numpy"), numpy.__spec__.origin)
        print(numpy.__spec__._initializing, importlib.util.find_spec("numpy") is numpy.__spec__)
        importlib.reload(numpy)
        """,
    )
    done = programs.same("a.py")
    assert (done.code, "reloaded" in done.err) == (0, True)


@pytest.mark.parametrize(
    "text",
    [
        "import os, missing",
        "raise ValueError('of numpy')",
        "raise KeyboardInterrupt",
        "def f(:",
        "from . import inner",
        "import sys; sys.exit(3)",
    ],
)
def test_a_numpy_that_cannot_be_imported(programs, text):
    programs.write("numpy/__init__.py", text)
    programs.write("numpy/inner.py", "1 / 0")
    programs.write("a.py", "def f():\n    import numpy.linalg\nf()")
    assert programs.same("a.py").code not in (0, 2)


def test_a_subinterpreter(programs):
    programs.write(
        "a.py",
        """
        import os, sys
        if sys.version_info >= (3, 13):
            import _interpreters as interpreters
            interpreter = interpreters.create("legacy")
        else:
            import _xxsubinterpreters as interpreters
            interpreter = interpreters.create(isolated=False)
        code = "import numpy; print(numpy.ones(1 << 20).sum(), flush=True)"
        print(interpreters.run_string(interpreter, code), flush=True)
        os._exit(0)  # Python itself may hang when it ends now
        """,
    )
    assert programs.same("a.py").code == 0
