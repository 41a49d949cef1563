"""Kernels that are compiled once and kept on disk for as long as no source changes that they may be made of.

Numba can keep kernels itself, but it compiles a kept one anew only when the file that it is in has changed,
and not when another one has whose functions or constants are part of it: after an update, old machine code
would go on giving old answers. And it keeps nothing, or fails, where it must not write: here kernels are also
found where they can only be read, as in an image that is never written to, and where they cannot be kept they
are compiled in memory.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba.core import caching

_log = logging.getLogger(__name__)

_IMPORT = re.compile(r"^[ \t]*(?:from|import) +([\w.]+)(?: +import +(\(([^)]*)\)|[^\n#]*))?", re.MULTILINE)


class NotKept(BaseException):
    """A kernel is not kept, and is not to be compiled here. Nothing on the way takes it for an error."""


def cached(**options: Any) -> Callable[[Any], Any]:
    """Compile a function when it is called first, and keep the machine code on disk.

    What it is made of, besides itself, lies in the directory of its own file, or is imported there.

    Args:
        options: What ``numba.njit`` takes.
    """
    njit: Any = numba.njit  # its own types do not know all options

    def decorate(function: Any) -> Any:
        made: Any = njit(**{**options, "cache": False})(function)
        if hasattr(made, "_cache"):  # not where compiling is switched off, to look for a mistake
            made._cache = _Kept(function)
        return made

    return decorate


@contextmanager
def only_kept() -> Iterator[None]:
    """In this thread, raise NotKept instead of compiling a kernel that is not kept."""
    _here.only_kept = True
    try:
        yield
    finally:
        _here.only_kept = False


def kept_where() -> Path | None:
    """Where newly compiled kernels are kept; None if there is no place that can be written to."""
    places: list[str] = [locator.get_cache_path() for locator in _locators(cached, __file__)]
    return next((Path(place) for place in places if _is_writable(place)), None)


_here = threading.local()


class _Kept:
    """The machine code of one function: found in any of several places, written to the first that can be."""

    def __init__(self, function: Any) -> None:
        file = function.__code__.co_filename
        self._places: list[Any] = [_Place(function, locator) for locator in _locators(function, file)]
        self._name = function.__qualname__

    @property
    def cache_path(self) -> str:
        """What numba's statistics show."""
        return str(self._places[0].cache_path) if self._places else ""

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The machine code for argument types; None if it is not kept."""
        for place in self._places:
            try:
                found = place.load_overload(signature, target_context)
            except OSError:  # it may not be read, or a name on the way there is no directory
                continue
            if found is not None:
                return found
        if getattr(_here, "only_kept", False):
            raise NotKept(self._name)
        return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Keep machine code, if that is possible."""
        for place in self._places:
            if _is_writable(str(place.cache_path)):
                try:
                    place.save_overload(signature, data)
                except OSError as error:
                    _say_once(f"{place.cache_path}: {error.strerror}")
                return
        _say_once("no place for them can be written to")

    def flush(self) -> None:
        """Forget what is kept."""
        for place in self._places:
            if _is_writable(str(place.cache_path)):
                place.flush()


class _Place(caching.FunctionCache):
    """One directory in which a function's machine code may lie."""

    def __init__(self, function: Any, locator: Any) -> None:
        class Implementation(caching.CompileResultCacheImpl):
            _locator_classes: list[Any] = [_Given(locator)]  # noqa: RUF012  # What numba calls it; it is not changed.

        self._impl_class = Implementation
        super().__init__(function)  # type: ignore[no-untyped-call]  # numba has no types
        stamp = locator.get_source_stamp()
        self._cache_file: Any = _Files(  # type: ignore[no-untyped-call]
            self.cache_path, self._impl.filename_base, stamp
        )


class _Files(caching.IndexDataCacheFile):
    """A function's files, of which each says itself what it is of.

    Numba goes by an index that tells the files' numbers, and writes that first. Two processes that keep a
    function at once may give one number to two different argument types; and for a moment a number stands for
    machine code of the sources as they were. Who believed the index then would run what was made for other
    types, and read and write where nothing of its own is.
    """

    def save(self, key: Any, data: Any) -> None:
        """Keep machine code, with the sources and the types that it is of."""
        super().save(key, (self._source_stamp, key, data))  # type: ignore[no-untyped-call]

    def load(self, key: Any) -> Any:
        """The machine code for a key; None if there is none."""
        found: Any = super().load(key)  # type: ignore[no-untyped-call]
        return found[2] if found is not None and found[:2] == (self._source_stamp, key) else None


class _Given:
    """Stands for a locator's class, where numba would make the locator itself."""

    def __init__(self, locator: Any) -> None:
        self._locator = locator

    def from_function(self, _function: Any, _file: str) -> Any:
        return self._locator


class _Anywhere:
    """What is not as with numba's own locators: places need not be writable, and all sources beside count."""

    def ensure_cache_path(self) -> None:
        """Writing makes it."""

    def get_source_stamp(self) -> Any:
        own: Any = super().get_source_stamp()  # type: ignore[misc]
        return own, _fingerprint(Path(self._py_file).parent)  # type: ignore[attr-defined]


class _Chosen(_Anywhere, caching.UserProvidedCacheLocator):
    """``NUMBA_CACHE_DIR``."""


class _BesideTheSource(_Anywhere, caching.InTreeCacheLocator):
    """``__pycache__`` beside the source."""


class _OfTheUser(_Anywhere, caching.UserWideCacheLocator):
    """``~/.cache/numba``, or where ``XDG_CACHE_HOME`` says."""


def _locators(function: Any, file: str) -> list[Any]:
    chosen = [_Chosen] if getattr(numba.config, "CACHE_DIR", "") else []
    classes: tuple[Any, ...] = (*chosen, _BesideTheSource, _OfTheUser)
    return [locator(function, file) for locator in classes]


@functools.cache
def _is_writable(directory: str) -> bool:
    try:
        os.makedirs(directory, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


@functools.cache
def _say_once(why: str) -> None:
    _log.warning(
        "compiled kernels cannot be kept (%s): each process compiles them anew, for some ten seconds. "
        "Set NUMBA_CACHE_DIR to a directory that can be written to, or to one that `headrace compile` filled",
        why,
    )


@functools.cache
def _fingerprint(directory: Path) -> int:
    """Stands for the text of all modules in a directory, and of all that these import from their package.

    What a kernel reads of them is compiled into it: functions, and the values of constants.
    """
    waiting, found = sorted(directory.glob("*.py")), set()
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _imported(file)
    made = 0
    for file in sorted(found):
        made = zlib.crc32(file.read_bytes(), made)
    return made


@functools.cache
def _imported(file: Path) -> tuple[Path, ...]:
    """The modules of its package that a module imports: by its text, which is the same in each process."""
    root = file.parent
    while (root / "__init__.py").exists():
        root = root.parent
    package = file.relative_to(root).parts[0]
    names = []
    for module, several, _ in _IMPORT.findall(file.read_text("utf-8", "replace")):
        if module.partition(".")[0] == package:
            names += [module, *(f"{module}.{name}" for name in re.findall(r"\w+", several))]
    paths = [root.joinpath(*name.split(".")) for name in names]
    candidates = [one for path in paths for one in (path.with_suffix(".py"), path / "__init__.py")]
    return tuple(path for path in candidates if path.is_file())
