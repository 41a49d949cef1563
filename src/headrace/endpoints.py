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
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np

from headrace.base.errors import ConfigError, HeadraceError, InvalidRequest, InvalidRows
from headrace.base.tensors import BY_DTYPE, Array, Tensors
from headrace.config import MODEL_NAME
from headrace.config.headrace_toml import A_MODEL_NAME

_MARK = "__headrace_endpoint__"
_SCALARS: dict[object, str] = {float: "FP64", int: "INT64", bool: "BOOL", str: "BYTES", bytes: "BYTES"}
_EXPECTED = (
    "expected float, int, bool, str, bytes, a list of these, NDArray[np.float32], "
    "Annotated[NDArray[np.float32], (28, 28)], or a class with such fields"
)
_OUTPUT = "output"
_APPS_KEPT = 2
_apps: dict[Path, ModuleType] = {}
Target = TypeVar("Target", bound=Callable[..., Any])


class Column(NamedTuple):
    """One input or output.

    Attributes:
        name: Its name.
        datatype: Datatype of the Open Inference Protocol.
        shape: Shape of one row; None is a dimension of any size.
        read: Converts a batch's array to the rows' values; returns an array only for arrays.
    """

    name: str
    datatype: str
    shape: tuple[int | None, ...]
    read: Callable[[Array], Any]

    def join(self, rows: Any) -> Any:
        """Return an output of the rows' values."""
        return np.stack(rows) if self.read is _array and isinstance(rows, list) and rows else rows


class Part(NamedTuple):
    """A parameter, or the result: one column, or an object whose fields are columns.

    Attributes:
        name: Name of the parameter.
        columns: The columns.
        make: The object's class; None for a single column.
        in_rows: Whether an object has one row, also in a batch, which then has a list of objects.
    """

    name: str
    columns: tuple[Column, ...]
    make: Callable[..., Any] | None = None
    in_rows: bool = True

    def of_row(self, columns: Mapping[str, Any], row: int) -> Any:
        """Return the argument for one row.

        Raises:
            InvalidRequest: The class refused the values.
        """
        if self.make is None:
            return columns[self.columns[0].name][row]
        try:
            return self.make(**{one.name: columns[one.name][row] for one in self.columns})
        except ValueError as error:
            raise _refusal(error) from error

    def of_batch(self, columns: Mapping[str, Any], rows: range) -> Any:
        """Return the argument for a batch: a column, an object of columns, or a list of objects.

        Raises:
            InvalidRows: The class refused the values of these rows.
        """
        if self.make is None:
            return columns[self.columns[0].name]
        if not self.in_rows:
            return self.make(**{one.name: columns[one.name] for one in self.columns})
        objects, wrong = [], dict[int, tuple[str, str]]()
        for row in rows:
            try:
                objects.append(self.of_row(columns, row))
            except InvalidRequest as error:
                wrong[row] = _told(error)
        if wrong:
            raise InvalidRows.of(wrong)
        return objects


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
        raise ConfigError(f"{where}: expected a function, got a coroutine function; use def")
    hints = typing.get_type_hints(function, include_extras=True)
    parts = []
    for parameter in [*inspect.signature(function).parameters.values()][isinstance(target, type) :]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"{where}: parameter {parameter}: expected one that is given by name")
        parts.append(_part(f"{where}: parameter {parameter.name}", parameter.name, hints, batch=batch))
    names = [column.name for part in parts for column in part.columns]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"{where}: expected parameters with different names, got {', '.join(names) or 'none'}"
        )
    result = _part(f"{where}: the result", "return", hints, batch=batch)
    if result.make is None:
        result = Part(_OUTPUT, (result.columns[0]._replace(name=_OUTPUT),))
    return Endpoint(name, target, batch, tuple(parts), result)


def _part(where: str, name: str, hints: Mapping[str, Any], *, batch: bool) -> Part:
    if name not in hints:
        raise ConfigError(f"{where}: {_EXPECTED}; it has no annotation")
    kind = hints[name]
    made = kind
    if batch and typing.get_origin(kind) in (list, Sequence) and _fields(typing.get_args(kind)[0]):
        made = typing.get_args(kind)[0]
    if fields := _fields(made):
        inner = typing.get_type_hints(made, include_extras=True)
        # The fields of a batch of objects are those of one row; an object of columns has columns.
        in_rows = not batch or made is not kind
        columns = (_column(f"{where}.{one}", one, inner[one], batch=not in_rows) for one in fields)
        return Part(name, tuple(columns), made, in_rows)
    return Part(name, (_column(where, name, kind, batch=batch),))


def _fields(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a class for data; () for other types."""
    if dataclasses.is_dataclass(kind):
        return tuple(one.name for one in dataclasses.fields(kind))
    for attribute in ("model_fields", "__struct_fields__", "_fields"):  # pydantic, msgspec, NamedTuple
        if isinstance(kind, type) and hasattr(kind, attribute):
            return tuple(getattr(kind, attribute))
    return tuple(typing.get_type_hints(kind)) if typing.is_typeddict(kind) else ()


def _column(where: str, name: str, kind: Any, *, batch: bool) -> Column:
    shape: tuple[int | None, ...] | None = None
    if typing.get_origin(kind) is Annotated:
        kind, given = typing.get_args(kind)[:2]
        shape = (given,) if isinstance(given, int) else tuple(given)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is np.ndarray and arguments:
        (element,) = typing.get_args(arguments[1])
        dtype = np.dtype(element)
        if dtype in BY_DTYPE:
            rows = () if batch else (None,)
            return Column(name, BY_DTYPE[dtype].oip, rows if shape is None else shape, _array)
    depth = 0
    while origin in (list, Sequence) and arguments:
        kind, depth = arguments[0], depth + 1
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    depth -= batch
    if kind in _SCALARS and depth >= 0:
        return Column(
            name,
            _SCALARS[kind],
            (None,) * depth if shape is None else shape,
            _texts if kind is str else _values,
        )
    raise ConfigError(f"{where}: {_EXPECTED}, got {kind}" + (", in a list or an array" if batch else ""))


def _array(column: Array) -> Array:
    return column


def _values(column: Array) -> Any:
    return column.tolist()


def _texts(column: Array) -> Any:
    return _decoded(column.tolist())


def _decoded(value: Any) -> Any:
    return [_decoded(one) for one in value] if isinstance(value, list) else value.decode()


class EndpointModel:
    """An endpoint with the interface of the class ``Model`` of a ``model.py``."""

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
            InvalidRows: The function refuses these rows with InvalidRequest, or the class of a parameter
                with ValueError.
        """
        parts = self._endpoint.parameters
        columns = {one.name: one.read(inputs[one.name]) for part in parts for one in part.columns}
        rows = range(len(next(iter(inputs.values()))))
        if self._endpoint.batch:
            return self._outputs(self._call(**{part.name: part.of_batch(columns, rows) for part in parts}))
        results, wrong = [], dict[int, tuple[str, str]]()
        for row in rows:
            try:
                results.append(self._call(**{part.name: part.of_row(columns, row) for part in parts}))
            except InvalidRequest as error:
                wrong[row] = _told(error)
        if wrong:
            raise InvalidRows.of(wrong)
        return self._outputs(results)

    def _outputs(self, result: Any) -> dict[str, object]:
        """Return the outputs of a list of results, or of an object of columns."""
        columns = self._endpoint.result.columns
        if self._endpoint.result.make is None:
            return {columns[0].name: columns[0].join(result)}
        if not isinstance(result, list):
            return {one.name: _field(result, one.name) for one in columns}
        return {one.name: one.join([_field(row, one.name) for row in result]) for one in columns}


def _field(result: Any, name: str) -> Any:
    return result[name] if isinstance(result, Mapping) else getattr(result, name)


def _told(error: InvalidRequest) -> tuple[str, str]:
    """Return the field of a wrong row, and the text about it, as ``InvalidRows`` takes them."""
    return error.field, f": {error.message.removeprefix(f'{error.field}: ')}"


def _refusal(error: ValueError) -> InvalidRequest:
    """Return the error of an object that its class refused to make, with the field that it names."""
    errors = getattr(error, "errors", None)  # of pydantic
    if callable(errors):
        first = errors()[0]
        return InvalidRequest(str(first["msg"]), field=".".join(map(str, first["loc"])))
    return InvalidRequest(str(error))


# ---- app.py ----


def endpoints_of(source: Path, file: Path) -> dict[str, Endpoint]:
    """Import an ``app.py`` and return its endpoints by name.

    Args:
        source: A copy of the file, which does not change; each copy is imported once per process.
        file: The file itself: the ``__file__`` of the module, whose folder is in ``sys.path``.

    Raises:
        ConfigError: The file cannot be imported, has no endpoints, two with the same name, or one that
            another decorator wraps.
    """
    found = dict[str, Endpoint]()
    for variable, value in vars(_imported(source, file)).items():
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


def model_of(source: str, file: str, name: str) -> type[EndpointModel]:
    """Return the class ``Model`` of an endpoint, for a ``model.py``.

    Args:
        source: As for ``endpoints_of``.
        file: As for ``endpoints_of``.
        name: The endpoint's name.

    Raises:
        ConfigError: As for ``endpoints_of``.
    """
    served = endpoints_of(Path(source), Path(file))[name]

    class Model(EndpointModel):
        def __init__(self) -> None:
            super().__init__(served)

    return Model


def _imported(source: Path, file: Path) -> ModuleType:
    if source in _apps:
        return _apps[source]
    _forget_modules(file.parent)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    sys.modules[file.stem] = module  # dataclasses look there for annotations
    try:
        exec(compile(source.read_bytes(), file, "exec"), vars(module))
    except HeadraceError:
        raise
    except Exception as error:  # the boundary to the user's code
        raise ConfigError(f"{file.name} fails: {type(error).__name__}: {error}") from error
    while len(_apps) >= _APPS_KEPT:
        del _apps[next(iter(_apps))]
    _apps[source] = module
    return module


def _forget_modules(folder: Path) -> None:
    """Have modules in a folder imported again: they may have changed with the file that imports them."""
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None)
        if place and name != "__main__" and Path(place).parent == folder:
            del sys.modules[name]
