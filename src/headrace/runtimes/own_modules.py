"""Modules beside a ``model.py``, which each version has for itself.

A version is a package, and its modules are submodules of it: two versions with a module of one name never
share it. Import statements in its code find them by their plain names. So do ``pickle``, ``joblib`` and
``importlib`` while the version's code runs: the plain name stands in ``sys.modules`` until then.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

from headrace.errors import LoadError

PREFIX = "headrace_model_"
"""The beginning of the names of versions' packages."""

_Owner = tuple[str, frozenset[str]]
"""The package of a version, and the names of its modules."""

_running: ContextVar[_Owner | None] = ContextVar("_running", default=None)
_plain: dict[str, tuple[ModuleType, ModuleType | None]] = {}
"""By plain name, the version's module that stands in ``sys.modules``, and the module that stood there."""


def import_file(file: Path, package: str) -> ModuleType:
    """Import a file as a package, so that modules beside it are its submodules.

    Args:
        file: The file.
        package: The package's name.

    Raises:
        LoadError: It cannot be imported.
    """
    directory = str(file.parent)
    sys.path_importer_cache[directory] = FileFinder(directory, (_SourceLoader, SOURCE_SUFFIXES))
    spec = importlib.util.spec_from_file_location(
        package, file, loader=_SourceLoader(package, str(file)), submodule_search_locations=[directory]
    )
    if spec is None or spec.loader is None:
        raise LoadError(f"{file.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
    return module


def names_beside(directory: Path) -> frozenset[str]:
    """Return the names of the modules and packages in a version directory.

    Like for a script, a folder without ``__init__.py`` does not hide an installed package.

    Args:
        directory: The version directory.
    """
    names = {one.stem for one in directory.iterdir() if one.suffix == ".py"}
    folders = [one for one in directory.iterdir() if one.is_dir()]
    names |= {one.name for one in folders if (one / "__init__.py").is_file()}
    names |= {one.name for one in folders if any(one.glob("*.py")) and not _is_installed(one.name)}
    return frozenset(names - sys.stdlib_module_names)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


@contextmanager
def found(package: str, own: frozenset[str]) -> Iterator[None]:
    """Let libraries find the modules of a version by their plain names, in this context.

    Args:
        package: The version's package.
        own: The names of the modules in it.
    """
    token = _running.set((package, own))
    _FINDER.enter()
    try:
        yield
    finally:
        _FINDER.leave()
        _running.reset(token)
        if _plain:
            _give_back(package)


def forget(package: str, directory: Path) -> None:
    """Forget the modules of a version.

    Args:
        package: The version's package.
        directory: The version directory.
    """
    _give_back(package)
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        sys.modules.pop(name, None)
    sys.path_importer_cache.pop(str(directory), None)
    # Code that puts its directory there does so for modules that are found without it.
    sys.path[:] = [one for one in sys.path if one != str(directory)]


def _lend(name: str, module: ModuleType) -> None:
    """Put a version's module into ``sys.modules`` by its plain name."""
    there = sys.modules.get(name)
    if there is not module:
        _plain[name] = module, _plain[name][1] if name in _plain else there
        sys.modules[name] = module  # last: who asked takes it from there before another thread runs


def _give_back(package: str) -> None:
    for name, (module, before) in list(_plain.items()):
        if not module.__name__.startswith(f"{package}."):
            continue
        _plain.pop(name, None)
        if sys.modules.get(name) is module:
            sys.modules.pop(name, None)
            if before is not None:
                sys.modules[name] = before


class _SourceLoader(SourceFileLoader):
    """Reads source files of one version, and writes no ``__pycache__``: its directory is not to change."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module, whose import statements find the version's own modules first."""
        package = sys.modules[module.__name__.partition(".")[0]]
        if package.__name__.startswith(
            PREFIX
        ):  # else it was found by a path that the version's code has added
            own = names_beside(Path(package.__path__[0]))
            importing = _importing(package.__name__, own)
            vars(module)["__builtins__"] = {**vars(builtins), "__import__": importing}
        super().exec_module(module)

    def set_data(self, path: str, data: object, *, _mode: int = 0) -> None:
        """Write nothing."""


class _Finder(MetaPathFinder):
    """Finds the modules of the version whose code runs in this context, by their plain names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    def enter(self) -> None:
        """Take part in imports, while any version's code runs."""
        with self._lock:
            self._running += 1
            if self._running == 1:
                sys.meta_path.insert(0, self)

    def leave(self) -> None:
        """Undo one ``enter``."""
        with self._lock:
            self._running -= 1
            if not self._running:
                sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one; None for modules that are not the version's."""
        running = _running.get()
        if running is None or name.partition(".")[0] not in running[1]:
            return None
        return ModuleSpec(name, _Lender(f"{running[0]}.{name}"))


_FINDER = _Finder()


class _Lender(Loader):
    """Gives a version's module in place of one of its plain name."""

    def __init__(self, whole_name: str) -> None:
        self._whole_name = whole_name

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to importlib, which needs one to begin with."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the version's module in place of the one that importlib has made."""
        own = importlib.import_module(self._whole_name)
        sys.modules.pop(module.__name__, None)
        _lend(module.__name__, own)


def _importing(package: str, own: Collection[str]) -> Callable[..., ModuleType]:
    """Return what import statements of a version call.

    Args:
        package: The version's package.
        own: The names of the modules in it.
    """

    def importing(
        name: str,
        of: Mapping[str, object] | None = None,
        local: Mapping[str, object] | None = None,
        wanted: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or top not in own:
            return __import__(name, of, local, wanted or (), level)
        module = importlib.import_module(f"{package}.{name}")
        if isinstance(
            wanted, list
        ):  # not a statement: C code, such as pickle's, which takes it from sys.modules
            _lend(name, module)
            return module
        if not wanted:
            return sys.modules[f"{package}.{top}"]
        return __import__(module.__name__, of, local, wanted, 0)

    return importing
