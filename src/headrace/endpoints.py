"""Typed functions as models: ``@headrace.endpoint`` in an ``app.py``.

::

    import headrace

    @headrace.endpoint
    def price(age: float, city: str) -> float:
        return 10 + age / 2 + (city == "oslo")

``headrace serve app.py`` serves it as the model ``price``. The inputs are the parameters, with the types of
their annotations; the output is called ``output``. Parameters and results may also be dataclasses,
NamedTuples, TypedDicts, msgspec Structs or pydantic models, whose fields become inputs and outputs. With
``batch=True`` a function gets whole columns. A class is called through ``__call__``; an object of it is made
when the model is loaded. A function may be ``async``; one that yields answers in parts.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import threading
import traceback
import typing
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from headrace.base.errors import ConfigError, HeadraceError
from headrace.config import MODEL_NAME
from headrace.config.headrace_toml import A_MODEL_NAME
from headrace.endpoint_models import BoundEndpoint, Endpoint, model_class
from headrace.endpoint_types import Part, hints_of, part_of, without_none

_MARK = "__headrace_endpoint__"
_OUTPUT = "output"
_ITERATORS = (Iterator, Iterable, Generator, AsyncIterator, AsyncIterable, AsyncGenerator)
_APPS_KEPT = 2
_apps: dict[Path, ModuleType] = {}
_importing = threading.RLock()
_executing = set[Path]()
"""Files whose code runs now; under the lock."""
_given: dict[str, Endpoint] = {}
Target = TypeVar("Target", bound=Callable[..., Any])


def endpoint(target: Target | None = None, /, *, batch: bool = False, name: str = "") -> Any:
    """Serve a function, or a class with ``__call__``, as a model; a decorator.

    Args:
        target: The function or class, which is returned unchanged.
        batch: Whether it takes whole batches: each parameter gets a column, an array or a list of rows.
        name: The model's name; that of the function if empty.

    Raises:
        ConfigError: An annotation is missing or unknown, two inputs have the same name, the name is not
            a model's name, or the target is neither a function nor a class.
    """

    def mark(target: Target) -> Target:
        if not hasattr(target, "__name__"):
            raise ConfigError(
                f"@headrace.endpoint: expected a function or a class, got {type(target).__name__}; define a "
                "function that calls the object, or set the model's name with name=…"
            )
        setattr(target, _MARK, describe(target, batch=batch, name=name or target.__name__))
        return target

    return mark if target is None else mark(target)


def describe(target: Callable[..., Any], *, batch: bool, name: str) -> Endpoint:
    """Return the endpoint of a function or class; the arguments and errors are those of ``endpoint``."""
    where = f"endpoint {name}"
    if isinstance(target, type) and not any("__call__" in vars(one) for one in target.__mro__):
        raise ConfigError(
            f"{where}: the class {target.__name__} has no __call__; define it, or serve an object of the "
            "class if that is an estimator"
        )
    function = target.__call__ if isinstance(target, type) else target
    if not MODEL_NAME.fullmatch(name) or name.isdecimal():  # a directory with a number is a version
        raise ConfigError(
            f"{where}: expected {A_MODEL_NAME}, and not only digits; set it with @headrace.endpoint(name=…)"
        )
    hints = hints_of(where, function)
    parts = []
    for parameter in [*inspect.signature(function).parameters.values()][_has_self(target) :]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"{where}: parameter {parameter}: expected one that is given by name")
        part = part_of(f"{where}: parameter {parameter.name}", parameter.name, hints, batch=batch)
        is_null = parameter.default is None and without_none(hints[parameter.name])[1]
        if parameter.default is not parameter.empty and not is_null:
            raise ConfigError(
                f"{where}: parameter {parameter.name} has the default {parameter.default!r}, which no "
                "request could use: all inputs must be sent; remove the default"
            )
        parts.append(part)
    names = [column.name for part in parts for column in part.columns]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"{where}: expected parameters with different names, got {', '.join(names) or 'none'}"
        )
    hints = _of_part(f"{where}: the result", function, hints)
    result = part_of(f"{where}: the result", "return", hints, batch=batch)
    if result.make is None:
        result = Part(_OUTPUT, (result.columns[0]._replace(name=_OUTPUT),))
    return Endpoint(name, target, batch, tuple(parts), result)


def _has_self(target: Callable[..., Any]) -> bool:
    """Return whether the first parameter is the object of a class."""
    unbound = inspect.getattr_static(target, "__call__")
    return isinstance(target, type) and not isinstance(unbound, staticmethod | classmethod)


def _of_part(where: str, function: Callable[..., Any], hints: dict[str, Any]) -> dict[str, Any]:
    """Return a function's annotations; for one that yields, the type of a part is that of the result."""
    kind = hints.get("return")
    says = typing.get_origin(kind) in _ITERATORS
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        if says:
            raise ConfigError(
                f"{where}: expected a function that yields, because its result is {kind}; have it and the "
                "functions of its decorators yield, or annotate a list"
            )
        return hints
    if not says or not typing.get_args(kind):
        raise ConfigError(
            f"{where}: expected Iterator[…] or AsyncIterator[…] with the type of a part, because the "
            f"function yields, got {kind}"
        )
    return {**hints, "return": typing.get_args(kind)[0]}


# ---- app.py ----


def endpoints_of(source: Path, file: Path, *, as_guest: bool = False) -> dict[str, Endpoint]:
    """Import an ``app.py`` and return its endpoints by name.

    Args:
        source: A copy of the file, which does not change; each copy is imported once per process.
        file: The file itself: the ``__file__`` of the module, whose folder is in ``sys.path``.
        as_guest: Whether the process is someone else's, such as a notebook's: ``sys.modules`` keeps the
            modules that it has, and the file gets its own.

    Raises:
        ConfigError: The file cannot be imported, has no endpoints, two with the same name, or one that
            another decorator wraps.
    """
    with restoring_modules(file):
        module = _imported(source, file, as_guest)
        return _marked_in(module, file)


def _marked_in(module: ModuleType, file: Path) -> dict[str, Endpoint]:
    found = dict[str, Endpoint]()
    for variable, value in vars(module).items():
        marked: Endpoint | None = getattr(value, "__dict__", {}).get(_MARK)
        if marked is None:
            continue
        if marked.target is not value:  # functools.wraps copies the mark to the function that wraps
            raise ConfigError(
                f"{file.name}: {variable} wraps endpoint {marked.name}, and would be left out; "
                "put @headrace.endpoint above all other decorators"
            )
        if found.setdefault(marked.name, marked).target is not value:
            raise ConfigError(f"{file.name}: two endpoints are called {marked.name!r}; set name")
    if not found:
        raise ConfigError(f"{file.name}: no endpoints; mark a function with @headrace.endpoint")
    return found


def model_of(source: str, file: str, name: str, *, as_guest: bool = False) -> type[BoundEndpoint]:
    """Return the class ``Model`` of an endpoint, for a ``model.py``.

    Args:
        source: As for ``endpoints_of``.
        file: As for ``endpoints_of``.
        name: The endpoint's name.
        as_guest: As for ``endpoints_of``.

    Raises:
        ConfigError: As for ``endpoints_of``.
    """
    return model_class(endpoints_of(Path(source), Path(file), as_guest=as_guest)[name])


def _imported(source: Path, file: Path, as_guest: bool) -> ModuleType:
    if source in _apps:
        return _apps[source]
    if file.stem in sys.stdlib_module_names:
        raise ConfigError(
            f"{file.name}: has the name of Python's module {file.stem}, which it would replace; "
            "rename the file"
        )
    if file in _executing:
        raise ConfigError(
            f"{file.name}: serves itself while it is imported, without end; call headrace.serve in another "
            "file, or below `if __name__ == '__main__':`"
        )
    before = _modules_of(file)
    _forget(before)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    sys.modules[file.stem] = module  # dataclasses look there for annotations
    _executing.add(file)
    try:
        exec(compile(source.read_bytes(), file, "exec", dont_inherit=True), vars(module))
    except BaseException as error:  # the boundary to the user's code, which may also call sys.exit()
        if isinstance(error, HeadraceError | KeyboardInterrupt):
            raise
        raise ConfigError(f"{_place_of(error, file)}: {type(error).__name__}: {error}") from error
    finally:
        _executing.discard(file)
    if as_guest:
        sys.modules.update(before)
    while len(_apps) >= _APPS_KEPT:
        del _apps[next(iter(_apps))]
    _apps[source] = module
    return module


def _place_of(error: BaseException, file: Path) -> str:
    """Return the innermost line that failed of the file, or of one beside it, such as ``app.py:12``."""
    trace = traceback.extract_tb(error.__traceback__)
    own = [one for one in trace if Path(one.filename).parent == file.parent]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else f"{file.name} fails"


@contextmanager
def restoring_modules(file: Path) -> Iterator[None]:
    """Restore the modules of an ``app.py`` if the block fails; functions of the version before import them.

    One thread at a time executes such a block: others would import the file twice, or restore modules of its.

    Args:
        file: The file; its modules are its own, and those beside it.
    """
    with _importing:
        before = _modules_of(file)
        try:
            yield
        except BaseException:
            _forget(_modules_of(file))
            sys.modules.update(before)
            raise


def _modules_of(file: Path) -> dict[str, ModuleType]:
    """Return a file's modules by name: its own, and those beside it, which may have changed with it."""
    found = {}
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        is_beside = place is not None and Path(place).parent == file.parent
        if name != "__main__" and (is_beside or name == file.stem):
            found[name] = module
    return found


def _forget(modules: Iterable[str]) -> None:
    """Have modules imported again."""
    for name in modules:
        sys.modules.pop(name, None)


# ---- functions and classes of this process ----


def give(target: Callable[..., Any], name: str) -> tuple[Endpoint, str]:
    """Keep a function or class of this process for a ``model.py`` that is loaded in it.

    Args:
        target: The function or class; ``@headrace.endpoint`` is optional.
        name: The model's name; that of the endpoint or of the function if empty.

    Returns:
        The endpoint, and the key for ``model_given`` and ``take_back``.

    Raises:
        ConfigError: As for ``endpoint``.
    """
    marked: Endpoint | None = getattr(target, "__dict__", {}).get(_MARK)
    if marked is None:
        marked = describe(target, batch=False, name=name or target.__name__)
    elif marked.target is not target:  # a decorator above has copied the mark
        marked = describe(target, batch=marked.batch, name=name or marked.name)
    served = dataclasses.replace(marked, name=name or marked.name)
    key = uuid.uuid4().hex
    _given[key] = served
    return served, key


def take_back(key: str) -> None:
    """Forget a function or class.

    Args:
        key: From ``give``.
    """
    _given.pop(key, None)


def model_given(key: str) -> type[BoundEndpoint]:
    """Return the class ``Model`` of a function or class of this process, for a ``model.py``.

    Args:
        key: From ``give``.

    Raises:
        ConfigError: It was given in another process, or taken back.
    """
    if key not in _given:
        raise ConfigError("this model is a function of another process, which cannot be imported here")
    return model_class(_given[key])
