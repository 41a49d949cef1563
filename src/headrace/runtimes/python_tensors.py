"""The tensors of a ``model.py``: the inputs and outputs that it declares, and checks of its answers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.base.errors import LoadError, ModelError
from headrace.base.tensors import BY_OIP, STRING, Array, Tensors, describe, is_masked
from headrace.model.casting import DoesNotFit, may_cast, name_of
from headrace.model.casting import cast as cast_array
from headrace.model.servable import TensorSpec


def specs_of(side: str, declared: Iterable[tuple[Any, ...]]) -> tuple[TensorSpec, ...]:
    """Return the inputs or outputs that a class declares.

    Args:
        side: ``inputs``, which may have replacements of missing values, or ``outputs``.
        declared: A name, a datatype and the shape of a row for each.

    Raises:
        LoadError: An entry has another form, or a name is declared twice.
    """
    specs: list[TensorSpec] = []
    for entry in declared:
        try:
            name, datatype, shape, absent = entry if side == "inputs" and len(entry) > 3 else (*entry, None)
            spec = TensorSpec(name, BY_OIP[datatype].dtype, tuple(shape))
        except (TypeError, ValueError, KeyError) as error:
            raise LoadError(
                f"Model.{side}: expected (name, one of {', '.join(BY_OIP)}, row shape), got {entry!r}"
            ) from error
        specs.append(spec if absent is None else replace(spec, absent=_absent(spec, absent)))
    if len({spec.name for spec in specs}) < len(specs):
        raise LoadError(f"Model.{side}: a name is declared twice")
    return tuple(specs)


def _absent(spec: TensorSpec, value: object) -> float | str:
    """Return the value that replaces a missing one of an input, in the input's datatype."""
    try:
        if spec.dtype == STRING and isinstance(value, str):
            return value
        if spec.dtype != STRING and isinstance(value, bool | int | float | np.generic):
            return cast_array(np.asarray(value), spec.dtype).item()  # type: ignore[no-any-return]
    except DoesNotFit:
        pass
    kind = "a text" if spec.dtype == STRING else name_of(spec.dtype)
    raise LoadError(
        f"Model.inputs: expected {kind} as the fourth element of {spec.name!r}, which replaces missing "
        f"values, got {value!r}"
    )


def checked(specs: tuple[TensorSpec, ...], answer: object) -> Tensors:
    """Return a model's answer as arrays of the declared datatypes.

    Args:
        specs: The outputs.
        answer: The result of ``predict``.

    Raises:
        ModelError: The answer does not match the declaration.
    """
    if inspect.iscoroutine(answer) or inspect.isasyncgen(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ModelError(
            "predict returned a coroutine: mark the method (and its decorators' functions) `async def`, or "
            "return the awaited value"
        )
    if inspect.isgenerator(answer):
        raise ModelError(
            "predict returned a generator: a decorator hides that it yields; decorate it with a generator "
            "function (`yield from`), or without a decorator"
        )
    if not isinstance(answer, Mapping) or answer.keys() != {spec.name for spec in specs}:
        got = ", ".join(map(str, answer)) if isinstance(answer, Mapping) else "no mapping"
        declared = ", ".join(spec.name for spec in specs)
        raise ModelError(f"the model declares the outputs {declared}, but answered with {got or 'none'}")
    return {spec.name: _as_declared(spec, answer[spec.name]) for spec in specs}


def _as_numbers(spec: TensorSpec, value: object, array: Array) -> Array:
    if spec.dtype.kind in "iu" and array.dtype.kind not in "biu" and not isinstance(value, np.ndarray):
        # NumPy reads lists of integers beyond INT64 as floats or as objects.
        array = _whole(spec, np.asarray(value, STRING), array)
    elif spec.dtype.kind == "f" and array.dtype == STRING:
        array = _floats(spec, array)
    if not may_cast(array.dtype, spec.dtype):
        return array
    try:
        return cast_array(array, spec.dtype)
    except DoesNotFit as error:
        raise ModelError(f"the output {spec.name!r} of the model: {error}") from None


def _whole(spec: TensorSpec, objects: Array, array: Array) -> Array:
    """Return the integers of a list; the given array if the list has other elements."""
    if not objects.size or not all(isinstance(one, int | np.integer) for one in objects.flat):
        return array
    limits = np.iinfo(spec.dtype)
    for one in objects.flat:
        if not limits.min <= one <= limits.max:
            said = f"{one} does not fit in {name_of(spec.dtype)}"
            raise ModelError(f"the output {spec.name!r} of the model: {said}")
    return np.array(objects, spec.dtype)


def _floats(spec: TensorSpec, objects: Array) -> Array:
    """Return numbers of a list with integers beyond INT64 as floats; the given array if it has others."""
    if not all(isinstance(one, int | float | np.integer | np.floating) for one in objects.flat):
        return objects
    try:
        return objects.astype(np.float64)
    except OverflowError:
        raise ModelError(
            f"the output {spec.name!r} of the model: an integer does not fit in {name_of(spec.dtype)}"
        ) from None


def _as_declared(spec: TensorSpec, value: object) -> Array:
    if is_masked(value, len(spec.shape)):
        raise ModelError(f"the model declares {spec}, but answered with masked values; fill them")
    array = np.asarray(value, dtype=STRING if spec.dtype == STRING else None)
    if not array.size:
        # A list without elements has neither a datatype nor inner axes: NumPy reads it as FP64.
        inner = tuple(size or 0 for size in spec.shape[array.ndim - 1 :])
        array = np.empty(array.shape + inner, spec.dtype)
    elif spec.dtype == STRING:
        texts = [text.encode() if isinstance(text, str) else text for text in array.flat]
        if any(not isinstance(text, bytes) for text in texts):
            raise ModelError(
                f"the model declares {spec}, but answered with something that is not text or bytes"
            )
        array = np.array(texts, dtype=object).reshape(array.shape)
    else:
        array = _as_numbers(spec, value, array)
    if array.dtype != spec.dtype or array.ndim == 0 or not spec.accepts(array.shape[1:]):
        raise ModelError(f"the model declares {spec}, but answered with {describe(array)}")
    return array
