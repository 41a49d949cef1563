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
when the model is loaded.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import traceback
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from headrace.base.errors import ConfigError, HeadraceError, InvalidRequest, InvalidRows, ModelError
from headrace.base.tensors import Tensors
from headrace.config import MODEL_NAME
from headrace.config.headrace_toml import A_MODEL_NAME
from headrace.endpoint_types import Part, hints_of, kind_of, part_of, told

_MARK = "__headrace_endpoint__"
_OUTPUT = "output"
_APPS_KEPT = 2
_apps: dict[Path, ModuleType] = {}
_given: dict[str, Endpoint] = {}
Target = TypeVar("Target", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A function or class that is served as a model.

    Attributes:
        name: The model's name.
        target: The function or the class.
        batch: Whether it gets whole columns.
        parameters: Its parameters.
        result: Its result.
    """

    name: str
    target: Callable[..., Any]
    batch: bool
    parameters: tuple[Part, ...]
    result: Part

    @property
    def inputs(self) -> list[tuple[str, str, tuple[int | None, ...]]]:
        """The inputs as ``model.py`` declares them."""
        return [one[:3] for part in self.parameters for one in part.columns]

    @property
    def outputs(self) -> list[tuple[str, str, tuple[int | None, ...]]]:
        """The outputs as ``model.py`` declares them."""
        return [one[:3] for one in self.result.columns]


def endpoint(target: Target | None = None, /, *, batch: bool = False, name: str = "") -> Any:
    """Serve a function, or a class with ``__call__``, as a model; a decorator.

    Args:
        target: The function or class, which is returned unchanged.
        batch: Whether it takes whole batches: each parameter gets a column, an array or a list of rows.
        name: The model's name; that of the function if empty.

    Raises:
        ConfigError: An annotation is missing or unknown, two inputs have the same name, or the name
            is not a model's name.
    """

    def mark(target: Target) -> Target:
        setattr(target, _MARK, describe(target, batch=batch, name=name or target.__name__))
        return target

    return mark if target is None else mark(target)


def describe(target: Callable[..., Any], *, batch: bool, name: str) -> Endpoint:
    """Return the endpoint of a function or class; the arguments and errors are those of ``endpoint``."""
    function = target.__call__ if isinstance(target, type) else target
    where = f"endpoint {name}"
    if not MODEL_NAME.fullmatch(name) or name.isdecimal():  # a directory with a number is a version
        raise ConfigError(
            f"{where}: expected {A_MODEL_NAME}, and not only digits; set it with @headrace.endpoint(name=…)"
        )
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"{where}: expected a function, got a coroutine function; use def, or a model.py, whose predict "
            "may be async"
        )
    hints = hints_of(where, function)
    parts = []
    for parameter in [*inspect.signature(function).parameters.values()][isinstance(target, type) :]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"{where}: parameter {parameter}: expected one that is given by name")
        if parameter.default is not parameter.empty:
            raise ConfigError(
                f"{where}: parameter {parameter.name} has the default {parameter.default!r}, which no "
                "request could use: all inputs must be sent; remove the default"
            )
        parts.append(part_of(f"{where}: parameter {parameter.name}", parameter.name, hints, batch=batch))
    names = [column.name for part in parts for column in part.columns]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"{where}: expected parameters with different names, got {', '.join(names) or 'none'}"
        )
    result = part_of(f"{where}: the result", "return", hints, batch=batch)
    if result.make is None:
        result = Part(_OUTPUT, (result.columns[0]._replace(name=_OUTPUT),))
    return Endpoint(name, target, batch, tuple(parts), result)


class EndpointModel:
    """An endpoint with the interface of the class ``Model`` of a ``model.py``."""

    has_files = False
    """Its version directory is temporary: its user cannot put files there, such as recorded requests."""

    def __init__(self, served: Endpoint) -> None:
        """Bind an endpoint.

        Args:
            served: The endpoint.
        """
        self.inputs, self.outputs = served.inputs, served.outputs
        self._endpoint = served
        self._call: Callable[..., Any] = served.target

    def load(self, path: Path, context: object) -> None:
        """Make the object of a class."""
        if isinstance(self._endpoint.target, type):
            self._call = self._endpoint.target()

    def predict(self, inputs: Tensors) -> Mapping[str, object]:
        """Call the function for each row, or once for the batch.

        Raises:
            InvalidRows: These rows have text that is not UTF-8, the function refuses them with
                InvalidRequest, or the class of a parameter with ValueError.
            InvalidRequest: The function refuses a batch, or the class of an object of columns does.
            ModelError: The function returns something else than it declares.
        """
        parts = self._endpoint.parameters
        columns = self._values(inputs)
        rows = range(len(next(iter(inputs.values()))))
        if self._endpoint.batch:
            return self._outputs(self._call(**{part.name: part.of_batch(columns, rows) for part in parts}))
        results, wrong = [], dict[int, tuple[str, str]]()
        for row in rows:
            try:
                results.append(self._call(**{part.name: part.of_row(columns, row) for part in parts}))
            except InvalidRequest as error:
                wrong[row] = told(error)
        if wrong:
            raise InvalidRows.of(wrong)
        return self._outputs(results)

    def _values(self, inputs: Tensors) -> dict[str, Any]:
        """Return the rows' values of each input."""
        values, wrong = dict[str, Any](), dict[int, tuple[str, str]]()
        for one in [one for part in self._endpoint.parameters for one in part.columns]:
            try:
                values[one.name] = one.values(inputs[one.name])
            except InvalidRows as error:
                wrong = {**error.rows, **wrong}
        if wrong:
            raise InvalidRows.of(wrong)
        return values

    def _outputs(self, result: Any) -> dict[str, object]:
        """Return the outputs of a list of results, or of an object of columns."""
        columns, where = self._endpoint.result.columns, f"endpoint {self._endpoint.name}: the result"
        if self._endpoint.result.make is None:
            return {columns[0].name: columns[0].join(result, where)}
        names = [one.name for one in columns]
        if not isinstance(result, list):
            fields = _fields_of(result, names, where)
        else:
            rows = [_fields_of(row, names, where) for row in result]
            fields = {name: [row[name] for row in rows] for name in names}
        return {one.name: one.join(fields[one.name], f"{where}: {one.name}") for one in columns}


def _fields_of(result: Any, names: list[str], where: str) -> dict[str, Any]:
    try:
        return {
            name: result[name] if isinstance(result, Mapping) else getattr(result, name) for name in names
        }
    except (AttributeError, KeyError) as error:
        raise ModelError(
            f"{where}: expected an object with {', '.join(names)}, "
            f"but the function returned {kind_of(result)}"
        ) from error


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
    found = dict[str, Endpoint]()
    for variable, value in vars(_imported(source, file, as_guest)).items():
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


def model_of(source: str, file: str, name: str, *, as_guest: bool = False) -> type[EndpointModel]:
    """Return the class ``Model`` of an endpoint, for a ``model.py``.

    Args:
        source: As for ``endpoints_of``.
        file: As for ``endpoints_of``.
        name: The endpoint's name.
        as_guest: As for ``endpoints_of``.

    Raises:
        ConfigError: As for ``endpoints_of``.
    """
    return _model_class(endpoints_of(Path(source), Path(file), as_guest=as_guest)[name])


def _model_class(served: Endpoint) -> type[EndpointModel]:
    class Model(EndpointModel):
        def __init__(self) -> None:
            super().__init__(served)

    return Model


def _imported(source: Path, file: Path, as_guest: bool) -> ModuleType:
    if source in _apps:
        return _apps[source]
    if file.stem in sys.stdlib_module_names:
        raise ConfigError(
            f"{file.name}: has the name of Python's module {file.stem}, which it would replace; "
            "rename the file"
        )
    before = _forget_modules(file)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    sys.modules[file.stem] = module  # dataclasses look there for annotations
    try:
        exec(compile(source.read_bytes(), file, "exec", dont_inherit=True), vars(module))
    except BaseException as error:  # the boundary to the user's code, which may also call sys.exit()
        _forget_modules(file)
        sys.modules.update(before)  # the version before may import them in its functions
        if isinstance(error, HeadraceError | KeyboardInterrupt):
            raise
        raise ConfigError(f"{_place_of(error, file)}: {type(error).__name__}: {error}") from error
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


def _forget_modules(file: Path) -> dict[str, ModuleType]:
    """Have a file's modules imported again: its own, and those beside it, which may have changed with it.

    Returns:
        The modules, by name.
    """
    forgotten = {}
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        is_beside = place is not None and Path(place).parent == file.parent
        if name != "__main__" and (is_beside or name == file.stem):
            forgotten[name] = sys.modules.pop(name)
    return forgotten


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
    if marked is None or marked.target is not target:  # a decorator above has copied the mark
        marked = describe(target, batch=False, name=name or target.__name__)
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


def model_given(key: str) -> type[EndpointModel]:
    """Return the class ``Model`` of a function or class of this process, for a ``model.py``.

    Args:
        key: From ``give``.

    Raises:
        ConfigError: It was given in another process, or taken back.
    """
    if key not in _given:
        raise ConfigError("this model is a function of another process, which cannot be imported here")
    return _model_class(_given[key])
