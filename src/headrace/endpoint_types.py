"""The inputs and outputs of typed functions: which column each annotation becomes, and its values.

``headrace.endpoints`` is their user.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from headrace.base.errors import ConfigError, InvalidRequest, InvalidRows, ModelError, listed, shown
from headrace.base.tensors import BY_DTYPE, BY_OIP, STRING, Array, describe, is_masked
from headrace.model.casting import may_cast

_SCALARS: dict[type, str] = {float: "FP64", int: "INT64", bool: "BOOL", str: "BYTES", bytes: "BYTES"}
_EXPECTED = (
    "expected float, int, bool, str, bytes, a list of these, NDArray[np.float32], "
    "Annotated[NDArray[np.float32], (28, 28)], or a class with such fields"
)
_NO_NONE = (
    "values cannot be None: a float may be NaN; choose an integer or a text of your own for a missing one"
)
_NONE_IN_INPUTS = "only float, int, str and bytes may be None, also in a list: list[float | None]"
_NAMES = {datatype: kind.__name__ for kind, datatype in _SCALARS.items()}
_PYDANTIC = ("annotated_types", "pydantic")
_CHECKING = (*_PYDANTIC, "msgspec")
"""Packages whose metadata are conditions on a value, which only their own classes check."""
_OF_META = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")
"""The conditions of ``msgspec.Meta``; its other attributes describe a value."""

MISSING_INTEGER = -(2**63)
"""The integer that stands for a missing one: NumPy's dates have it for NaT, too."""

_OR_NONE: dict[type, tuple[float | str, Callable[[Any], Any]]] = {
    float: (math.nan, lambda value: None if math.isnan(value) else value),
    int: (MISSING_INTEGER, lambda value: None if value == MISSING_INTEGER else value),
    str: ("", lambda value: value.decode() or None),
    bytes: ("", lambda value: value or None),
}
"""For types whose values may be missing: the value that stands for a missing one, and how values are read."""


class Column(NamedTuple):
    """One input or output.

    Attributes:
        name: Its name.
        datatype: Datatype of the Open Inference Protocol.
        shape: Shape of one row; None is a dimension of any size.
        read: Converts a batch's array to the rows' values; returns an array only for arrays.
        absent: The value that stands for a missing one; None if no value may be missing.
    """

    name: str
    datatype: str
    shape: tuple[int | None, ...]
    read: Callable[[Array], Any]
    absent: float | str | None = None

    @property
    def declaration(self) -> tuple[Any, ...]:
        """The input or output as ``model.py`` declares it."""
        return self[:3] if self.absent is None else (*self[:3], self.absent)

    def values(self, array: Array) -> Any:
        """Return the rows' values of a batch's array.

        Raises:
            InvalidRows: These rows have text that is not UTF-8.
        """
        try:
            return self.read(array)
        except UnicodeDecodeError:
            wrong = dict[int, tuple[str, str]]()
        for row, value in enumerate(array.tolist()):
            try:
                _of_each(bytes.decode, value)
            except UnicodeDecodeError as error:
                wrong[row] = (self.name, f": expected text in UTF-8, got {shown(error.object)}")
        raise InvalidRows.of(wrong)

    @property
    def declared(self) -> str:
        """The annotation of one row, for error messages."""
        if self.read is _array:
            sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
            return f"an array of {self.datatype} [{sizes}]"
        kind = "str" if self.read is _texts else _NAMES[self.datatype]
        return "list[" * len(self.shape) + kind + "]" * len(self.shape)

    def join(self, rows: Any, where: str) -> Any:
        """Return an output of the rows' values.

        Args:
            rows: The values: a list, or what a function returned for a batch.
            where: The result's place, for error messages.

        Raises:
            ModelError: A value is not of the declared kind, or the rows have different shapes.
        """
        if is_masked(rows, len(self.shape) + (self.read is _array)):
            self._expect_fit(rows, where)
        try:
            array = np.stack(rows) if self.read is _array and isinstance(rows, list) and rows else rows
            array = self._as_array(array)
        except ValueError:
            self._expect_fit(rows, where)
            raise self._of_different_shapes(where) from None
        if not array.size:
            return rows
        if array.ndim and self._takes(array, array.shape[1:]):
            return array
        self._expect_fit(rows, where)
        if self.datatype == "BYTES":  # NumPy makes objects of lists of different lengths
            raise self._of_different_shapes(where)
        return rows  # integers that are too large, which have their own error

    def _of_different_shapes(self, where: str) -> ModelError:
        kinds = "arrays of different shapes" if self.read is _array else "lists of different lengths"
        return ModelError(f"{where}: the rows have {kinds}; return the same for all, padded if need be")

    def _expect_fit(self, rows: Any, where: str) -> None:
        if not isinstance(rows, list):
            raise ModelError(
                f"{where}: expected {self.declared} for each row, but the function returned {kind_of(rows)}"
            )
        for value in rows:
            if not self._fits(value):
                raise ModelError(
                    f"{where}: expected {self.declared}, but the function returned {kind_of(value)}"
                )

    def _fits(self, value: Any) -> bool:
        """Return whether a row's value may become this output; integers also if they are too large for it."""
        if is_masked(value, len(self.shape)):
            return False
        try:
            array = self._as_array(value)
            objects = np.asarray(value, STRING)
        except ValueError:  # lists of different lengths
            return False
        if not array.size:
            return bool(self.shape)
        if self._takes(array, array.shape):
            return True
        are_integers = all(isinstance(one, int) for one in objects.flat)
        return are_integers and self.datatype in ("INT64", "FP64") and objects.ndim == len(self.shape)

    def _as_array(self, value: Any) -> Array:
        return np.asarray(value, STRING if self.datatype == "BYTES" else None)

    def _takes(self, array: Array, shape: tuple[int, ...]) -> bool:
        """Return whether values, of which one row has this shape, may become this output."""
        if len(shape) != len(self.shape):
            return False
        if self.datatype == "BYTES":
            return all(isinstance(one, str | bytes) for one in array.flat)
        return may_cast(array.dtype, BY_OIP[self.datatype].dtype)


def kind_of(value: Any) -> str:
    """Return the type of a value, never the value, which may be of another caller."""
    if value is None:
        return "None"
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine; mark it and the functions of its decorators `async def`"
    sized = isinstance(value, list | tuple | np.ndarray)
    return type(value).__name__ + (f" ({_described(value)})" if sized else "")


def _described(value: Any) -> str:
    if is_masked(value, 1):
        return "with masked values"
    try:
        return describe(np.asarray(value))
    except ValueError:
        return "of different lengths"


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
        return _made(self.make, {one.name: columns[one.name][row] for one in self.columns})

    def of_batch(self, columns: Mapping[str, Any], rows: range) -> Any:
        """Return the argument for a batch: a column, an object of columns, or a list of objects.

        Raises:
            InvalidRows: The class refused the values of these rows.
            InvalidRequest: The class of an object of columns refused them.
        """
        if self.make is None:
            return columns[self.columns[0].name]
        if not self.in_rows:
            return _made(self.make, {one.name: columns[one.name] for one in self.columns})
        objects, wrong = [], dict[int, tuple[str, str]]()
        for row in rows:
            try:
                objects.append(self.of_row(columns, row))
            except InvalidRequest as error:
                wrong[row] = told(error)
        if wrong:
            raise InvalidRows.of(wrong)
        return objects


def hints_of(where: str, target: Any) -> dict[str, Any]:
    """Return the annotations of a function or class, those in quotes evaluated.

    Args:
        where: Its place, for error messages.
        target: The function or class.

    Raises:
        ConfigError: An annotation names something that its module does not have.
    """
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        missing = str(getattr(error, "name", "") or "")
        named = [
            f"{name}: {shown(one)}"
            for name, one in inspect.get_annotations(target).items()
            if isinstance(one, str) and missing in one
        ]
        raise ConfigError(
            f"{where}: an annotation cannot be read, of {listed(named)}: {error}; "
            "move what it names to the top level of the module"
        ) from error


def without_none(kind: Any) -> tuple[Any, bool]:
    """Return ``X`` of ``X | None`` and True; any other type and whether it is a union with None.

    Args:
        kind: An annotation; ``Annotated`` is removed.
    """
    kind = _without_metadata(kind)[0]
    if typing.get_origin(kind) not in (typing.Union, UnionType):
        return kind, False
    kinds = [one for one in typing.get_args(kind) if one is not NoneType]
    may_lack = len(kinds) < len(typing.get_args(kind))
    return _without_metadata(kinds[0])[0] if may_lack and len(kinds) == 1 else kind, may_lack


def part_of(where: str, name: str, hints: Mapping[str, Any], *, batch: bool) -> Part:
    """Return what a parameter, or the result, consists of.

    Args:
        where: Its place, for error messages.
        name: Its name; ``return`` is the result.
        hints: The annotations of the function.
        batch: Whether the function takes whole batches.

    Raises:
        ConfigError: The annotation is missing or unknown, or requests cannot make its class.
    """
    if name not in hints:
        raise ConfigError(f"{where}: {_EXPECTED}; it has no annotation")
    kind = hints[name]
    made = kind
    if batch and typing.get_origin(kind) in (list, Sequence) and _fields(typing.get_args(kind)[0]):
        made = typing.get_args(kind)[0]
    given = name != "return"
    if fields := _fields(made, given=given):
        inner = hints_of(where, made)
        # The fields of a batch of objects are those of one row; an object of columns has columns.
        in_rows = not batch or made is not kind
        columns = tuple(_column(f"{where}.{one}", one, inner[one], batch=not in_rows) for one in fields)
        if given:
            _expect_made(where, made, fields)
        checked = _checked_by(made, is_converted=given and in_rows)
        for one in fields:
            _expect_no_conditions(f"{where}.{one}", inner[one], checked)
        part = Part(name, columns, _maker(made) if in_rows else made, in_rows)
    else:
        _expect_no_conditions(where, kind)
        part = Part(name, (_column(where, name, kind, batch=batch),))
    if not given:
        _expect_no_none(where, part)
    return part


def _expect_no_none(where: str, result: Part) -> None:
    for one in result.columns:
        if one.absent is not None:
            place = where if result.make is None else f"{where}.{one.name}"
            raise ConfigError(f"{place}: {_EXPECTED}; {_NO_NONE}")


def _fields(kind: Any, *, given: bool = False) -> tuple[str, ...]:
    """Return the names of the fields of a class for data, or of those that it is given; () for others."""
    if dataclasses.is_dataclass(kind):
        return tuple(one.name for one in dataclasses.fields(kind) if one.init or not given)
    for attribute in ("model_fields", "__struct_fields__", "_fields"):  # pydantic, msgspec, NamedTuple
        if isinstance(kind, type) and hasattr(kind, attribute):
            return tuple(getattr(kind, attribute))
    return tuple(typing.get_type_hints(kind)) if typing.is_typeddict(kind) else ()


def _is_struct(made: Any) -> bool:
    return hasattr(made, "__struct_fields__")


def _maker(made: Any) -> Callable[..., Any]:
    """Return what makes an object: Structs only check their fields when they are converted."""
    if not _is_struct(made):
        return made  # type: ignore[no-any-return]

    def converted(**values: Any) -> Any:
        return msgspec.convert(
            SimpleNamespace(**values), made, from_attributes=True, dec_hook=lambda _type, value: value
        )

    return converted


def _expect_made(where: str, made: Any, fields: tuple[str, ...]) -> None:
    """Check that a class can be called with its fields."""
    if typing.is_typeddict(made):
        return
    if hasattr(made, "model_fields"):
        by_name = made.model_config.get("populate_by_name") or made.model_config.get("validate_by_name")
        for name, field in made.model_fields.items():
            if field.validation_alias not in (None, name) and not by_name:
                raise ConfigError(
                    f"{where}: {made.__name__}.{name} has the alias {field.validation_alias!r}, but is given "
                    "by its name; set populate_by_name=True in the model_config, or remove the alias"
                )
        return
    parameters = inspect.signature(made).parameters
    any_name = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for name in fields:
        if name not in parameters and not any_name:
            raise ConfigError(
                f"{where}: {made.__name__}.{name} is a field, but {made.__name__}() does not take it; "
                "rename it, or leave it out with field(init=False)"
            )
    for one in parameters.values():
        varies = one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        if one.default is one.empty and not varies and one.name not in fields:
            raise ConfigError(
                f"{where}: {made.__name__}() takes {one.name}, which is not a field; give it a default, "
                "or make it a field"
            )


def _checked_by(made: Any, *, is_converted: bool) -> tuple[str, ...]:
    """Return the packages whose conditions are checked when an object of a class is made."""
    if hasattr(made, "__pydantic_validator__"):
        return _PYDANTIC
    return ("msgspec",) if is_converted and _is_struct(made) else ()


def _expect_no_conditions(where: str, kind: Any, checked: tuple[str, ...] = ()) -> None:
    """Check that an annotation has no conditions, such as ``Field(ge=0)``, but those that are checked."""
    for one in typing.get_args(kind):
        package = type(one).__module__.partition(".")[0]
        if package in _CHECKING and package not in checked and _is_condition(one):
            way_out = f"use conditions of {checked[-1]}" if checked else "put it into a pydantic model"
            raise ConfigError(
                f"{where}: nothing would check {one!r} here; {way_out}, or check the value in the function"
            )
        _expect_no_conditions(where, one, checked)


def _is_condition(metadata: Any) -> bool:
    """Return whether metadata of a package that checks values do more than describe one."""
    if isinstance(metadata, msgspec.Meta):
        return any(getattr(metadata, name) is not None for name in _OF_META)
    return bool(getattr(metadata, "metadata", True))  # a FieldInfo may only describe


def _without_metadata(kind: Any) -> tuple[Any, tuple[int | None, ...] | None]:
    """Return a type without ``Annotated``, and the shape among its metadata."""
    if typing.get_origin(kind) is not Annotated:
        return kind, None
    kind, *metadata = typing.get_args(kind)
    shapes = [one if isinstance(one, tuple | list) else (one,) for one in metadata if one is not None]
    sizes = (int, type(None))
    return kind, next((tuple(one) for one in shapes if all(type(size) in sizes for size in one)), None)


def _column(where: str, name: str, kind: Any, *, batch: bool) -> Column:
    kind, shape = _without_metadata(kind)
    if any(size is not None and size < 1 for size in shape or ()):
        raise ConfigError(f"{where}: expected a shape of sizes from 1 and None for any size, got {shape}")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is np.ndarray and arguments:
        dtype = _dtype_of(arguments)
        if dtype in BY_DTYPE:
            rows = () if batch else (None,)
            return Column(name, BY_DTYPE[dtype].oip, rows if shape is None else shape, _array)
    depth = 0
    while origin in (list, Sequence) and arguments:
        kind, depth = _without_metadata(arguments[0])[0], depth + 1
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    depth -= batch
    scalar, may_lack = without_none(kind)
    if scalar in _SCALARS and depth >= 0 and (not may_lack or scalar in _OR_NONE):
        if shape is not None and len(shape) != depth:
            raise ConfigError(
                f"{where}: the shape {shape} needs {len(shape)} lists in one another, got {depth}"
            )
        absent, value = _OR_NONE[scalar] if may_lack else (None, None)
        read = partial(_each, value) if value else _texts if scalar is str else _values
        return Column(name, _SCALARS[scalar], (None,) * depth if shape is None else shape, read, absent)
    if batch and kind in _SCALARS:
        raise ConfigError(
            f"{where}: expected one value for each row of a batch, list[{kind.__name__}], got {kind.__name__}"
        )
    got = f"{where}: {_EXPECTED}, got {kind}" + (", in a list or an array" if batch else "")
    raise ConfigError(f"{got}; {_NONE_IN_INPUTS}" if may_lack else got)


def _dtype_of(arguments: tuple[Any, ...]) -> np.dtype[Any] | None:
    """Return the dtype in the arguments of ``np.ndarray[…]``; None if they name no single one."""
    given = typing.get_args(arguments[1])
    if not given:
        return None
    try:
        dtype = np.dtype(given[0])
    except (TypeError, ValueError):  # abstract, such as np.floating
        return None
    return dtype if not dtype.hasobject or given[0] is np.object_ else None  # NumPy takes Any for object


def _array(column: Array) -> Array:
    return column


def _values(column: Array) -> Any:
    return column.tolist()


def _texts(column: Array) -> Any:
    return _each(bytes.decode, column)


def _each(read: Callable[[Any], Any], column: Array) -> Any:
    return _of_each(read, column.tolist())


def _of_each(read: Callable[[Any], Any], value: Any) -> Any:
    return [_of_each(read, one) for one in value] if isinstance(value, list) else read(value)


def told(error: InvalidRequest) -> tuple[str, str]:
    """Return the field of a wrong row, and the text about it, as ``InvalidRows`` takes them."""
    return error.field, f": {error.message.removeprefix(f'{error.field}: ')}"


def _made(make: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    try:
        return make(**values)
    except ValueError as error:
        raise _refusal(error) from error


def _refusal(error: ValueError) -> InvalidRequest:
    """Return the error of an object that its class refused to make, with the field that it names."""
    errors = getattr(error, "errors", None)  # of pydantic
    if callable(errors):
        first = errors()[0]
        return InvalidRequest(str(first["msg"]), field=".".join(map(str, first["loc"])))
    text, _, place = str(error).partition(" - at `$.")  # of msgspec
    return InvalidRequest(text, field=place.removesuffix("`"))
