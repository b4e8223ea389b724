"""Imports bigmem as soon as a program has imported NumPy, and not before.

A program may want to set first what NumPy's libraries read from the environment when they are
loaded, and one without NumPy pays nothing.
"""

import os
import sys

# As in typing; but only what every program has imported may be imported here, lest a module of the
# program's own that has the same name as one of Python's is hidden.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_WATCHED = ("numpy", "bigmem")


def watch(config: str) -> None:
    """Have `bigmem.cli._launch.begin` called with `config` once NumPy has been imported."""
    finder = _Watch(config)
    sys.meta_path.insert(0, finder)
    for name in _WATCHED:
        if name in sys.modules:  # a .pth file has imported it
            finder.executed(sys.modules[name])


class _Watch:
    """A finder that finds what the others find, and notices when it has been executed.

    It stays where it is afterwards, and finds nothing: removing it would let an import in another
    thread, which goes through the finders one by one, miss the next one.
    """

    def __init__(self, config: str) -> None:
        self._waiting = [config]  # empty once bigmem has begun or has failed

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in _WATCHED or not self._waiting or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: "Loader") -> None:
        """Notice what the loader executes; it stays the object that others know."""
        attributes = getattr(loader, "__dict__", None)
        execute = getattr(loader, "exec_module", None)
        if not isinstance(attributes, dict) or execute is None or "exec_module" in attributes:
            return

        def exec_module(module: "ModuleType") -> None:
            execute(module)
            if module.__name__ in _WATCHED:
                attributes.pop("exec_module", None)
                self.executed(module)

        # Python leaves its own import machinery, which it knows by this name, out of tracebacks:
        # so they look as ever when NumPy cannot be imported.
        machinery = "<frozen importlib._bootstrap>"
        exec_module.__code__ = exec_module.__code__.replace(co_filename=machinery)
        attributes["exec_module"] = exec_module

    def executed(self, module: "ModuleType") -> None:
        """Import bigmem after NumPy, and begin after bigmem.

        The second step is not part of the first: where the program imports bigmem, NumPy is
        executed in the middle of that.
        """
        try:
            if module.__name__ == "numpy":
                _import_bigmem()
            elif self._waiting and _is_ours(module.__spec__):
                from bigmem.cli import _launch

                _launch.begin(self._waiting.pop())
        except Exception as error:
            self._waiting.clear()
            _tell(f"{type(error).__name__}: {error}")


def _import_bigmem() -> None:
    """Import it if it is there for this interpreter."""
    import importlib.util

    found = importlib.util.find_spec("bigmem") if _is_main_interpreter() else None
    if found is None:
        return
    if not _is_ours(found):  # and perhaps the program itself, not to be executed a second time
        raise ImportError(f"{found.origin} has the same name")
    # The statement accepts what another thread is importing, which may be waiting for our NumPy.
    import bigmem  # noqa: F401


def _is_ours(found: "ModuleSpec | None") -> bool:
    places = (found and found.submodule_search_locations) or ()
    here = os.path.join("cli", "startup", os.path.basename(__file__))
    return any(os.path.isfile(os.path.join(place, here)) for place in places)


def _is_main_interpreter() -> bool:
    import importlib

    try:
        name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
        interpreters = importlib.import_module(name)
    except ImportError:
        return True  # this Python is built without the others, which bigmem refuses
    return bool(interpreters.get_current() == interpreters.get_main())


def _tell(problem: str) -> None:
    import contextlib

    line = " ".join(problem.split())
    # There may be no standard error, and it may be full or closed.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"bigmem: the program runs without the hook: {line}\n")
