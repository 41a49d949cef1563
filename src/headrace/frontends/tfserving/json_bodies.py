"""JSON bodies of any form: parsing within the limits, conversion to arrays, and serialization of answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from operator import length_hint
from typing import Annotated, Any, cast

import msgspec
import numpy as np

from headrace.base.errors import InvalidRequest, listed, shown
from headrace.base.tensors import STRING, Array
from headrace.frontends.tfserving.decimals import shortest
from headrace.frontends.tfserving.json_misfits import BINARY, too_large, wrong_lists, wrong_names, wrong_value
from headrace.frontends.wire.json_misfits import binary_instead, place_of
from headrace.frontends.wire.json_text import Json, parse_at_once
from headrace.frontends.wire.request_budget import RequestBudget, check_name
from headrace.frontends.wire.texts import decoded
from headrace.model.misfits import is_beyond, position, position_in, ragged, said, wrong_element
from headrace.model.missing_values import complete
from headrace.model.servable import Signature, TensorSpec

BASE64 = "b64"
BYTES_SUFFIX = "_bytes"

_SHORTENED = (np.dtype(np.float16).char, np.dtype(np.float32).char)

_encode = msgspec.json.Encoder().encode


# ---- Parsing ----


def parse(body: bytes, max_depth: int) -> dict[str, Json]:
    """Parse a short body.

    Args:
        body: JSON, in which NaN, Infinity and -Infinity are accepted as numbers.
        max_depth: Largest nesting depth.

    Raises:
        InvalidRequest: The body is not JSON, nests too deep, or is not an object.
    """
    try:
        return document(parse_at_once(body, max_depth))
    except InvalidRequest:
        if (better := binary_instead(body, BINARY)) is not None:
            raise better from None
        raise


def document(found: Json) -> dict[str, Json]:
    """Check that a parsed body is an object, and return it.

    Raises:
        InvalidRequest: It is not an object.
    """
    if not isinstance(found, dict):
        raise InvalidRequest(f"expected a JSON object, got {kind(found)}", field="body")
    return found


def kind(value: Json) -> str:
    """Return the kind of a JSON value, for error messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def signature_name(document: dict[str, Json]) -> str:
    """Return the signature that a body asks for, or ""."""
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise InvalidRequest(f"expected a string, got {kind(name)}", field="signature_name")
    check_name(len(name), "signature_name")
    return name


# ---- Predict's inputs ----


def columns_of(
    document: dict[str, Json], signature: Signature, budget: RequestBudget
) -> tuple[dict[str, Array], bool]:
    """Return the inputs in a body, and whether they came as rows.

    Args:
        document: The body.
        signature: The signature whose inputs are expected.
        budget: Limits the cost of the request.

    Raises:
        InvalidRequest: The body has not exactly one of ``instances`` and ``inputs``, or a value is invalid.
        TooLarge: Too many values would be filled in.
    """
    by_row = is_by_row(document)
    if by_row:
        rows = document["instances"]
        named = is_named(rows, signature)
        check_rows(rows, 0, named, signature)
        names = signature.input_names
        given = {name: [row[name] for row in rows] for name in names} if named else {names[0]: rows}
    else:
        given = columns_in(document["inputs"], signature)
        signature.check_names(given)
    return {spec.name: as_array(spec, given[spec.name], budget) for spec in signature.inputs}, by_row


def is_by_row(document: dict[str, Json]) -> bool:
    """Return whether a body's inputs came as rows.

    Raises:
        InvalidRequest: The body has not exactly one of ``instances`` and ``inputs``.
    """
    by_row = "instances" in document
    if by_row == ("inputs" in document):
        got = "both" if by_row else "neither"
        raise InvalidRequest(
            f"expected either 'instances' (rows) or 'inputs' (columns), got {got}; "
            'send {"instances": [row, …]}, or {"inputs": {name: column, …}}',
            field="body",
        )
    return by_row


def is_named(rows: Json, signature: Signature) -> bool:
    """Return whether rows are objects with named inputs; the first row decides for all.

    Raises:
        InvalidRequest: There are no rows, or the first one lacks names.
    """
    if not isinstance(rows, list):
        raise InvalidRequest(
            f"expected a list of rows, got {kind(rows)}; put a single row into a list, too", field="instances"
        )
    if not rows:
        raise InvalidRequest("expected at least one row, got an empty list", field="instances")
    named = _is_object(rows[0])
    if not named and len(signature.inputs) > 1:
        wanted = listed(map(shown, signature.input_names))
        raise InvalidRequest(
            f"expected objects with the inputs {wanted}, got {kind(rows[0])}", field="instances[0]"
        )
    return named


def check_rows(rows: Sequence[Json], first: int, named: bool, signature: Signature) -> None:
    """Check that rows have the form of the first one.

    Args:
        rows: Consecutive rows.
        first: Index of the first of them, for errors.
        named: Whether they must be objects.
        signature: The signature whose inputs the objects must have.

    Raises:
        InvalidRequest: A row has another form, or other inputs.
    """
    if not named and not any(type(row) is dict for row in rows):
        return
    names = signature.input_names
    for index, row in enumerate(rows, first):
        if _is_object(row) != named:
            wanted = "an object, as the first row is" if named else "a value, as the first row is"
            raise InvalidRequest(f"expected {wanted}, got {kind(row)}", field=f"instances[{index}]")
        if named and (len(row) != len(names) or not all(name in row for name in names)):
            raise wrong_names(names, row, index)


def columns_in(given: Json, signature: Signature) -> dict[str, Json]:
    """Return the columns in a body's ``inputs`` by name; a single input needs no name.

    Raises:
        InvalidRequest: There are several inputs and no names.
    """
    if _is_object(given):
        return cast("dict[str, Json]", given)
    if len(signature.inputs) > 1:
        wanted = listed(map(shown, signature.input_names))
        raise InvalidRequest(
            f"expected an object with the inputs {wanted}, got {kind(given)}", field="inputs"
        )
    return {signature.inputs[0].name: given}


def _is_object(value: Json) -> bool:
    return isinstance(value, dict) and not is_base64(value)


def is_base64(value: Json) -> bool:
    """Return whether a value is an object that holds base64."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(BASE64), str)


# ---- Values ----

_LEAVES = {
    "f": float,
    "b": bool,
    # The upper limit is checked by the array, as it may exceed those that msgspec supports.
    "u": Annotated[int, msgspec.Meta(ge=0)],
    "i": int,
}


def leaf_type(dtype: np.dtype[Any]) -> Any:
    """Return msgspec's type for one element: no booleans as numbers, and no fractions as integers."""
    if dtype.kind not in "iu" or dtype == np.uint64:
        return _LEAVES[dtype.kind]
    limits = np.iinfo(dtype)
    return Annotated[int, msgspec.Meta(ge=int(limits.min), le=int(limits.max))]


@cache
def _nested_type(dtype: np.dtype[Any], rank: int) -> Any:
    found = leaf_type(dtype)
    for _ in range(rank):
        found = list[found]  # type: ignore[valid-type]
    return found


def as_array(spec: TensorSpec, value: Json, budget: RequestBudget) -> Array:
    """Convert a JSON value to an array of an input's dtype and rank.

    Args:
        spec: The input.
        value: All its rows.
        budget: Charged with the values filled in for absent ones.

    Raises:
        InvalidRequest: The value has elements of another type, another depth, or ragged lists.
        TooLarge: Too many values would be filled in.
    """
    read = _string_array if spec.dtype == STRING else _number_array
    try:
        return read(spec, value)
    except InvalidRequest:
        completed = complete(spec, value, budget)
        if completed is value:
            raise
        return read(spec, completed)


def _number_array(spec: TensorSpec, value: Json) -> Array:
    try:
        typed = msgspec.convert(value, _nested_type(spec.dtype, len(spec.shape) + 1))
        with np.errstate(over="raise"):
            return np.array(typed, dtype=spec.dtype)
    except msgspec.ValidationError as error:
        raise wrong_value(spec, value, error) from error
    except ArithmeticError as error:  # OverflowError of an integer, FloatingPointError of a float
        raise too_large(spec, value) from error
    except ValueError as error:
        raise ragged(spec, value) from error


def numbers(spec: TensorSpec, values: list[Json], first: int) -> Array:
    """Convert some of an input's elements to an array of its dtype.

    Args:
        spec: The input, of numbers or booleans.
        values: The elements, as a flat list.
        first: Index of the first of them, for errors.

    Raises:
        InvalidRequest: An element has another type.
    """
    try:
        typed = msgspec.convert(values, _nested_type(spec.dtype, 1))
        with np.errstate(over="raise"):
            return np.array(typed, dtype=spec.dtype)
    except msgspec.ValidationError as error:
        (index,) = place_of(error)
        raise wrong_element(spec, values[index], position_in(spec, first + index)) from error
    except ArithmeticError as error:  # as above
        index = next(index for index, value in enumerate(values) if is_beyond(spec.dtype, value))
        raise wrong_element(spec, values[index], position_in(spec, first + index)) from error


def _string_array(spec: TensorSpec, value: Json) -> Array:
    shape: list[int] = []
    flat: Sequence[Json] = [value]
    for _ in range(len(spec.shape) + 1):
        sizes = {len(one) if isinstance(one, list) else -1 for one in flat}
        if len(sizes) != 1 or sizes == {-1}:
            raise wrong_lists(spec, flat, len(shape))
        shape.append(sizes.pop())
        flat = list(chain.from_iterable(flat))
        if not flat:
            break
    filled, rest = np.empty(len(flat), STRING), iter(flat)
    try:
        filled[:] = [as_bytes(one, spec.name) for one in rest]
    except InvalidRequest:
        number = len(flat) - length_hint(rest) - 1
        as_bytes(flat[number], spec.name, position(list(map(int, np.unravel_index(number, shape)))))
        raise
    return filled.reshape(shape)


def as_bytes(value: Json, field: str, where: str = "") -> bytes:
    """Return the bytes of a string, or of an object ``{"b64": …}``.

    Args:
        value: The string or object.
        field: Name of the field, for errors.
        where: Position of the value, put in front of the message.

    Raises:
        InvalidRequest: The value is neither, or its base64 is invalid.
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:  # half a surrogate pair
            raise InvalidRequest(f"{where}expected text: {error.reason}", field=field) from error
    if not is_base64(value):
        way_out = "; put it in quotes" if isinstance(value, int | float) else ""
        raise InvalidRequest(
            f'{where}expected a string or {{"b64": "…"}}, got {said(value)}{way_out}', field=field
        )
    try:
        return decoded(value[BASE64])
    except ValueError as error:
        raise InvalidRequest(f"{where}expected base64: {error}", field=field) from error


def examples_of(
    document: dict[str, Json], signature: Signature, budget: RequestBudget
) -> tuple[list[dict[str, list[Json]]], dict[str, list[Json]]]:
    """Return the examples of a body for classify or regress, and its context: lists of values by feature.

    Features of the context apply to each example that lacks them.

    Args:
        document: The body.
        signature: The signature that takes the features.
        budget: Charged with the context's values, once for each example.

    Raises:
        InvalidRequest: The examples are not a list of objects of values.
        TooLarge: The context, repeated for all examples, has too many values.
    """
    given = list_of_examples(document)
    shared = shared_features(document, len(given), signature, budget)
    return [features(one, f"examples[{index}]") for index, one in enumerate(given)], shared


def list_of_examples(document: dict[str, Json]) -> list[Json]:
    """Return the examples of a body as received.

    Raises:
        InvalidRequest: There are none, or they are not a list.
    """
    given = document.get("examples")
    if not isinstance(given, list) or not given:
        got = kind(given) if "examples" in document and given != [] else "none"
        raise InvalidRequest(f"expected a list of at least one example, got {got}", field="examples")
    return given


def shared_features(
    document: dict[str, Json], examples: int, signature: Signature, budget: RequestBudget
) -> dict[str, list[Json]]:
    """Return the context's features that the signature takes, charged once for each example.

    Their bytes are charged where they are repeated.

    Args:
        document: The body.
        examples: Number of examples.
        signature: The signature that takes the features.
        budget: Charged with the values; a feature without values counts as one.

    Raises:
        InvalidRequest: The context is not an object of values.
        TooLarge: The context, repeated for all examples, has too many values.
    """
    if "context" not in document:
        return {}
    context = features(document["context"], "context")
    if not signature.examples:  # otherwise the model chooses its features itself
        context = {name: values for name, values in context.items() if name in signature.input_names}
    for name, values in context.items():
        budget.values(max(1, len(values)) * examples, f"context.{name}")
    return context


def features(example: Json, field: str) -> dict[str, list[Json]]:
    """Return the features of one example; those that are null are omitted.

    Args:
        example: The example as received.
        field: Name of the example, for errors.

    Raises:
        InvalidRequest: The example is not an object of values.
    """
    if not isinstance(example, dict):
        raise InvalidRequest(f"expected an object, got {kind(example)}", field=field)
    return {
        name: [_feature(one, field, name) for one in (values if isinstance(values, list) else [values])]
        for name, values in example.items()
        if values is not None
    }


def _feature(value: Json, field: str, name: str) -> int | float | bytes:
    if isinstance(value, int | float):
        return int(value) if isinstance(value, bool) else value
    return as_bytes(value, f"{field}.{name}")


# ---- Answers ----


def print_json(document: object) -> bytes:
    """Serialize as JSON, with NaN and infinities as the tokens that parsing accepts."""
    body = _encode(document)
    if b"null" in body:  # msgspec writes null for NaN and infinities
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return body


def print_predictions(tensors: Mapping[str, Array], *, by_row: bool) -> bytes:
    """Serialize Predict's answer: ``predictions`` for rows, ``outputs`` for columns; a single output unnamed.

    Args:
        tensors: The outputs, by name.
        by_row: Whether the request came in rows.
    """
    if len(tensors) == 1:
        ((name, tensor),) = tensors.items()
        return print_json({"predictions" if by_row else "outputs": json_values(name, tensor)})
    values = {name: json_values(name, tensor) for name, tensor in tensors.items()}
    if not by_row:
        return print_json({"outputs": values})
    return print_json(
        {"predictions": [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]}
    )


def json_values(name: str, tensor: Array) -> list[Json]:
    """Return an output as nested lists.

    Strings become base64 if the output's name ends in ``_bytes``, or if they are not UTF-8.

    Args:
        name: Name of the output.
        tensor: Its values.
    """
    code = tensor.dtype.char
    if code in _SHORTENED:
        if tensor.size != 1:
            return cast("list[Json]", shortest(tensor).tolist())
        only: Any = float(str(tensor[(0,) * tensor.ndim]))  # the most common answer
        for _ in range(tensor.ndim):
            only = [only]
        values: list[Json] = only  # not `cast`, which is a call
        return values
    if code == STRING.char:
        printed = np.empty(tensor.size, STRING)
        printed[:] = [printed_text(value, as_base64=name.endswith(BYTES_SUFFIX)) for value in tensor.ravel()]
        return cast("list[Json]", printed.reshape(tensor.shape).tolist())
    return cast("list[Json]", tensor.tolist())


def printed_text(value: bytes, *, as_base64: bool) -> Json:
    """Return a string as a JSON value: text, or an object that holds base64.

    Args:
        value: The bytes of the string.
        as_base64: Whether to use base64 even if the string is UTF-8.
    """
    if not as_base64:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {BASE64: base64.b64encode(value).decode()}
