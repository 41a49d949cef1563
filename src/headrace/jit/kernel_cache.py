"""Compiled kernels, cached on disk until a source file that they may depend on changes, and their options.

Numba's own cache recompiles a kernel only when the kernel's own file changes. It misses changes in other
files whose functions or constants are compiled into the kernel, so after an update stale machine code would
keep returning stale results. Numba also caches nothing, or fails, where it cannot write. Here kernels are
also found in read-only directories, such as an immutable image. Where no directory is writable, they are
compiled in memory.
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

FAST = {"contract", "reassoc", "nsz", "arcp", "afn"}
"""Floating-point optimisations allowed to the compiler; NaN and infinity keep their meaning."""

_ANY: dict[str, Any] = {"fastmath": FAST, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}

PART: dict[str, Any] = {**_ANY, "forceinline": True, "no_cpython_wrapper": True}
"""Options of ``numba.njit`` for a part of a kernel. It allocates nothing, so it needs no reference counting.
Only kernels call it, so it needs no wrapper for Python."""

KERNEL: dict[str, Any] = {**_ANY, "cache": True, "nogil": True}
"""Options for a whole kernel, which is cached on disk and releases the GIL."""


class NotKept(BaseException):
    """A kernel is not cached, and may not be compiled. Not an Exception, so that no handler hides it."""


def cached(**options: Any) -> Callable[[Any], Any]:
    """Compile a function on its first call, and cache the machine code on disk.

    All code that the function depends on must be in its own directory, or be imported there.

    Args:
        options: Options of ``numba.njit``.
    """
    njit: Any = numba.njit  # numba's annotations lack some of the options

    def decorate(function: Any) -> Any:
        made: Any = njit(**{**options, "cache": False})(function)
        if hasattr(made, "_cache"):  # absent when compilation is switched off for debugging
            made._cache = _KernelCache(function)
        return made

    return decorate


@contextmanager
def only_kept() -> Iterator[None]:
    """In this thread, raise NotKept instead of compiling a kernel that is not cached."""
    _here.only_kept = True
    try:
        yield
    finally:
        _here.only_kept = False


def kept_where() -> Path | None:
    """Return the directory that caches new kernels of ``headrace.jit``; None if none is writable."""
    places: list[str] = [locator.get_cache_path() for locator in _locators(cached, __file__)]
    return next((Path(place) for place in places if _is_writable(place)), None)


_here = threading.local()


class _KernelCache:
    """The machine code of one function: read from any cache directory, written to the first writable one."""

    def __init__(self, function: Any) -> None:
        file = function.__code__.co_filename
        self._places: list[Any] = [
            _CacheDirectory(function, locator) for locator in _locators(function, file)
        ]
        self._name = function.__qualname__

    @property
    def cache_path(self) -> str:
        """The directory shown in numba's statistics."""
        return str(self._places[0].cache_path) if self._places else ""

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the machine code for argument types; None if it is not cached."""
        for place in self._places:
            try:
                found = place.load_overload(signature, target_context)
            except OSError:  # unreadable, or a path component is not a directory
                continue
            if found is not None:
                return found
        if getattr(_here, "only_kept", False):
            raise NotKept(self._name)
        return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Cache machine code if a directory is writable."""
        for place in self._places:
            if _is_writable(str(place.cache_path)):
                try:
                    place.save_overload(signature, data)
                except OSError as error:
                    _warn_once(f"{place.cache_path}: {error.strerror}")
                return
        _warn_once("no cache directory is writable")

    def flush(self) -> None:
        """Discard the cached machine code."""
        for place in self._places:
            if _is_writable(str(place.cache_path)):
                place.flush()


class _CacheDirectory(caching.FunctionCache):
    """One directory that may hold a function's machine code."""

    def __init__(self, function: Any, locator: Any) -> None:
        class Implementation(caching.CompileResultCacheImpl):
            _locator_classes: list[Any] = [_FixedLocator(locator)]  # noqa: RUF012  # numba's name; never modified

        self._impl_class = Implementation
        super().__init__(function)  # type: ignore[no-untyped-call]  # numba has no types
        stamp = locator.get_source_stamp()
        self._cache_file: Any = _Files(  # type: ignore[no-untyped-call]
            self.cache_path, self._impl.filename_base, stamp
        )


class _Files(caching.IndexDataCacheFile):
    """A function's cache files, each of which records the sources and argument types that it was made for.

    Numba trusts an index that maps argument types to numbered files, and writes the index first. Two
    processes that cache a function at once may give one number to two different argument types. For a moment,
    a number may also refer to machine code of older sources. Code that trusted the index would then run
    machine code compiled for other types, and access memory out of bounds.
    """

    def save(self, key: Any, data: Any) -> None:
        """Cache machine code together with its sources' stamp and its types."""
        super().save(key, (self._source_stamp, key, data))  # type: ignore[no-untyped-call]

    def load(self, key: Any) -> Any:
        """Return the machine code for a key; None if there is none, or if its file is damaged."""
        try:
            found: Any = super().load(key)  # type: ignore[no-untyped-call]
            return found[2] if found is not None and found[:2] == (self._source_stamp, key) else None
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - unpickling a damaged file may raise anything
            _warn_damaged(self._index_path, error)
            return None

    def _load_index(self) -> Any:
        """Return the index; an empty one if it is damaged, or refers to types of another release."""
        try:
            return super()._load_index()  # type: ignore[no-untyped-call]
        except OSError:
            raise
        except (ImportError, AttributeError):  # of another release
            return {}
        except Exception as error:  # noqa: BLE001 - unpickling a damaged file may raise anything
            _warn_damaged(self._index_path, error)
            return {}


class _FixedLocator:
    """Stand-in for a locator class, which numba would otherwise instantiate itself."""

    def __init__(self, locator: Any) -> None:
        self._locator = locator

    def from_function(self, _function: Any, _file: str) -> Any:
        return self._locator


class _PackageLocator:
    """Overrides of numba's locators: directories may be read-only, and all neighbouring sources count."""

    def ensure_cache_path(self) -> None:
        """Do nothing: the directory is created on writing."""

    def get_source_stamp(self) -> Any:
        own: Any = super().get_source_stamp()  # type: ignore[misc]
        return own, _fingerprint(Path(self._py_file).parent)  # type: ignore[attr-defined]


class _ChosenDirectory(_PackageLocator, caching.UserProvidedCacheLocator):
    """``NUMBA_CACHE_DIR``."""


class _SourceDirectory(_PackageLocator, caching.InTreeCacheLocator):
    """``__pycache__`` beside the source."""


class _UserDirectory(_PackageLocator, caching.UserWideCacheLocator):
    """``~/.cache/numba``, or a directory under ``XDG_CACHE_HOME``."""


def _locators(function: Any, file: str) -> list[Any]:
    chosen = [_ChosenDirectory] if getattr(numba.config, "CACHE_DIR", "") else []
    classes: tuple[Any, ...] = (*chosen, _SourceDirectory, _UserDirectory)
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
def _warn_once(why: str) -> None:
    _log.warning(
        "compiled kernels cannot be cached (%s): each process compiles them again, in about ten seconds. "
        "Set NUMBA_CACHE_DIR to a writable directory, or to one that `headrace compile` filled",
        why,
    )


def _warn_damaged(index: str, error: Exception) -> None:
    _log.warning(
        "a file of the kernel cache is damaged (%s, or a file beside it: %s): it will be rewritten",
        index,
        type(error).__name__,
    )


@functools.cache
def _fingerprint(directory: Path) -> int:
    """Return a checksum of a directory's modules and of the package modules that they import, recursively.

    A kernel has their functions and the values of their constants compiled in.
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
    """Return the package modules that a module imports, from its text, the same in every process."""
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


# ---- Options of kernels ----


def kernel(**options: Any) -> Any:
    """Compile a function that owns no memory and releases the GIL.

    Reference counting is off: numba counts atomically at each use of an array from a tuple, which takes half
    the time of kernels as short as these. The function cannot allocate arrays.

    Args:
        options: Options of ``numba.njit``.
    """
    return cached(nogil=True, _nrt=False, **options)


def part(**options: Any) -> Any:
    """Compile a function that only kernels call, like ``kernel`` but without a wrapper for Python.

    The wrapper would be compiled for each part and never used; unpacking tuples of arrays is long code.

    Args:
        options: Options of ``numba.njit``.
    """
    njit: Any = numba.njit  # numba's own types lack some options
    return njit(nogil=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
