"""Isolate the modules beside a ``model.py`` between versions.

A version is a package, and its modules are submodules of it: two versions never share a module of the same
name. Import statements in the version's code find its modules by their plain names. So do ``pickle``,
``joblib`` and ``importlib`` while that code runs: the plain name is in ``sys.modules`` until it ends.
"""

from __future__ import annotations

import builtins
import importlib.util
import itertools
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

from headrace.base.errors import LoadError

_numbers = itertools.count(1)
_running: ContextVar[OwnModules | None] = ContextVar("_running", default=None)
_plain: dict[str, tuple[ModuleType, ModuleType | None]] = {}
"""By plain name: the version's module now in ``sys.modules``, and the module that it displaced."""


class OwnModules:
    """The modules of one version.

    Attributes:
        names: The plain names of the modules and packages beside ``model.py``; empty if there are none.
    """

    def __init__(self, file: Path) -> None:
        """Find the modules.

        Args:
            file: The version's ``model.py``.
        """
        self.names = _names_beside(file)
        self._file, self._directory = file, str(file.parent)
        self._package = f"headrace_model_{next(_numbers)}"
        if self.names:
            _FINDER.enter()

    def import_model(self) -> ModuleType:
        """Import the file as a package, so that modules beside it are its submodules.

        Raises:
            LoadError: It cannot be imported.
        """
        loader = partial(_SourceLoader, self)
        details = (loader, SOURCE_SUFFIXES)
        sys.path_importer_cache[self._directory] = FileFinder(self._directory, details)  # type: ignore[arg-type]
        spec = importlib.util.spec_from_file_location(
            self._package,
            self._file,
            loader=loader(self._package, str(self._file)),
            submodule_search_locations=[self._directory],
        )
        if spec is None or spec.loader is None:
            raise LoadError(f"{self._file.name} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[self._package] = module
        spec.loader.exec_module(module)
        return module

    def submodule(self, name: str) -> ModuleType:
        """Import a module of the version by its plain name."""
        return importlib.import_module(f"{self._package}.{name}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let libraries find the modules by their plain names within this context."""
        token = _running.set(self)
        try:
            yield
        finally:
            _running.reset(token)
            if _plain:
                self._give_back()

    def forget(self) -> None:
        """Remove the modules from the interpreter. Call it only once."""
        self._give_back()
        if self.names:
            _FINDER.leave()
        start = f"{self._package}."
        for name in list(sys.modules):  # a copy: other threads import meanwhile
            if name == self._package or name.startswith(start):
                sys.modules.pop(name, None)
        sys.path_importer_cache.pop(self._directory, None)
        # The model's code may have added its directory, which it does not need.
        sys.path[:] = [one for one in sys.path if one != self._directory]

    def importing(
        self,
        name: str,
        of: Mapping[str, object] | None = None,
        local: Mapping[str, object] | None = None,
        wanted: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as ``__import__`` does, but find the version's own modules first."""
        top = name.partition(".")[0]
        if level or top not in self.names:
            return __import__(name, of, local, wanted or (), level)
        module = self.submodule(name)
        # C code, such as pickle's, passes a list, unlike a statement, and then looks in sys.modules.
        if isinstance(wanted, list):
            _lend(name, module)
            return module
        if not wanted:
            return sys.modules[f"{self._package}.{top}"]
        return __import__(module.__name__, of, local, wanted, 0)

    def _give_back(self) -> None:
        for name, (module, before) in list(_plain.items()):
            if not module.__name__.startswith(f"{self._package}."):
                continue
            _plain.pop(name, None)
            if sys.modules.get(name) is module:
                sys.modules.pop(name, None)
                if before is not None:
                    sys.modules[name] = before


def _lend(name: str, module: ModuleType) -> None:
    """Put a version's module into ``sys.modules`` under its plain name."""
    there = sys.modules.get(name)
    if there is not module:
        _plain[name] = module, _plain[name][1] if name in _plain else there
        sys.modules[name] = module  # last: no thread may run between this and the caller's lookup


def _names_beside(file: Path) -> frozenset[str]:
    """Return the names of modules and packages; a folder without ``__init__.py`` hides no installed one."""
    folders = [one for one in file.parent.iterdir() if one.is_dir()]
    names = {one.stem for one in file.parent.iterdir() if one.suffix == ".py" and one != file}
    names |= {one.name for one in folders if (one / "__init__.py").is_file()}
    names |= {one.name for one in folders if any(one.glob("*.py")) and not _is_installed(one.name)}
    return frozenset(names - sys.stdlib_module_names)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


class _SourceLoader(SourceFileLoader):
    """Loads source files of one version without writing ``__pycache__``: its directory must not change."""

    def __init__(self, own: OwnModules, name: str, path: str) -> None:
        super().__init__(name, path)
        self._own = own

    def exec_module(self, module: ModuleType) -> None:
        """Run a module whose import statements find the version's own modules first."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._own.importing}
        super().exec_module(module)

    def set_data(self, path: str, data: object, *, _mode: int = 0) -> None:
        """Write nothing."""


class _Finder(MetaPathFinder):
    """Finds modules of the version whose code runs in this context, by their plain names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions = 0

    def enter(self) -> None:
        """Count a version that has modules of its own; the first one installs the finder."""
        with self._lock:
            self._versions += 1
            if self._versions == 1:
                sys.meta_path.insert(0, self)

    def leave(self) -> None:
        """Undo one ``enter``; the last version removes the finder."""
        with self._lock:
            self._versions -= 1
            if not self._versions:
                sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module; return None if the version has no such module."""
        own = _running.get()
        if own is None or name.partition(".")[0] not in own.names:
            return None
        return ModuleSpec(name, _Lender(own))


_FINDER = _Finder()


class _Lender(Loader):
    """Loads a plain name as the version's own module."""

    def __init__(self, own: OwnModules) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> None:
        """Let importlib create the initial module."""

    def exec_module(self, module: ModuleType) -> None:
        """Replace the module that importlib has created by the version's own."""
        own = self._own.submodule(module.__name__)
        sys.modules.pop(module.__name__, None)
        _lend(module.__name__, own)
