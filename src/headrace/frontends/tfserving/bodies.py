"""JSON bodies of any form: parsed within the limits, values turned into arrays, answers printed."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Annotated, Any, cast

import msgspec
import numpy as np

from headrace.errors import InvalidRequest
from headrace.frontends.tfserving.decimals import shortest
from headrace.servable import Signature, TensorSpec
from headrace.tensors import STRING, Array

Json = Any
"""What JSON decodes to; looked into with isinstance before it is used."""

_BASE64 = "b64"
_BYTES_SUFFIX = "_bytes"

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACES = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_SHORTENED = (np.dtype(np.float16).char, np.dtype(np.float32).char)

_encode = msgspec.json.Encoder().encode


# ---- Parsing ----


def parse(body: bytes, max_depth: int) -> dict[str, Json]:
    """Parse a body.

    Args:
        body: JSON, in which NaN, Infinity and -Infinity are numbers too.
        max_depth: How deep it may nest.

    Raises:
        InvalidRequest: It is not JSON, nests too deep, or is not an object.
    """
    if body.count(b"[") + body.count(b"{") > max_depth and _is_deeper(body, max_depth):
        raise InvalidRequest(f"expected JSON nested at most {max_depth} deep, got deeper", field="body")
    try:
        found = msgspec.json.decode(body)
    except RecursionError as error:
        raise InvalidRequest(f"expected JSON nested at most {max_depth} deep", field="body") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"expected UTF-8, got {error.reason}; send bytes as base64", field="body"
        ) from error
    except msgspec.DecodeError as error:
        if b"NaN" not in body and b"Infinity" not in body:
            raise InvalidRequest(f"expected JSON: {error}", field="body") from error
        found = _parse_with_constants(body)
    if not isinstance(found, dict):
        raise InvalidRequest(f"expected a JSON object, got {_kind(found)}", field="body")
    return found


def _parse_with_constants(body: bytes) -> Json:
    try:
        return json.loads(body.decode(), parse_float=_finite)
    except RecursionError as error:
        raise InvalidRequest("expected JSON, nested less deep", field="body") from error
    except ValueError as error:
        raise InvalidRequest(f"expected JSON: {error}", field="body") from error


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("Number out of range")
    return number


def _is_deeper(body: bytes, max_depth: int) -> bool:
    """Take brackets out pair by pair, from the innermost: each round takes out one level."""
    brackets = _STRINGS.sub(b"", body).translate(_BRACES, _NO_BRACKETS)
    for _ in range(max_depth):
        before = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == before:  # none left; or they do not match, which is the parser's to say
            return False
    return b"[]" in brackets


def _kind(value: Json) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def signature_name(document: dict[str, Json]) -> str:
    """The signature that a body asks for, or ""."""
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise InvalidRequest(f"expected a string, got {_kind(name)}", field="signature_name")
    return name


# ---- Predict's inputs ----


def columns_of(document: dict[str, Json], signature: Signature) -> tuple[dict[str, Array], bool]:
    """The inputs in a body, and whether they came as rows.

    Args:
        document: The body.
        signature: The inputs that are wanted.

    Raises:
        InvalidRequest: The body has not exactly one of ``instances`` and ``inputs``, or a value is wrong.
    """
    by_row = "instances" in document
    if by_row == ("inputs" in document):
        got = "both" if by_row else "neither"
        raise InvalidRequest(
            f"expected either 'instances' (rows) or 'inputs' (columns), got {got}", field="body"
        )
    given = (
        _from_rows(document["instances"], signature)
        if by_row
        else _from_columns(document["inputs"], signature)
    )
    specs = {spec.name: spec for spec in signature.inputs}
    return {
        name: as_array(specs[name], value) if name in specs else value for name, value in given.items()
    }, by_row


def _from_rows(rows: Json, signature: Signature) -> dict[str, Json]:
    if not isinstance(rows, list):
        raise InvalidRequest(f"expected a list of rows, got {_kind(rows)}", field="instances")
    if not rows:
        raise InvalidRequest("expected at least one row, got an empty list", field="instances")
    names = signature.input_names
    named = _is_object(rows[0])
    if not named and len(names) > 1:
        raise InvalidRequest(
            f"expected objects with the inputs {_listed(names)}, got {_kind(rows[0])}",
            field="instances[0]",
        )
    for index, row in enumerate(rows):
        if _is_object(row) != named:
            wanted = "an object, as the first row is" if named else "a value, as the first row is"
            raise InvalidRequest(f"expected {wanted}, got {_kind(row)}", field=f"instances[{index}]")
        if named and (len(row) != len(names) or not all(name in row for name in names)):
            raise InvalidRequest(
                f"expected the inputs {_listed(names)}, got {_listed(row) or 'none'}",
                field=f"instances[{index}]",
            )
    return {name: [row[name] for row in rows] for name in names} if named else {names[0]: rows}


def _from_columns(given: Json, signature: Signature) -> dict[str, Json]:
    if _is_object(given):
        return cast("dict[str, Json]", given)
    if len(signature.inputs) > 1:
        raise InvalidRequest(
            f"expected an object with the inputs {_listed(signature.input_names)}, got {_kind(given)}",
            field="inputs",
        )
    return {signature.inputs[0].name: given}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _is_object(value: Json) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value: Json) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_BASE64), str)


# ---- Values ----

_LEAVES = {
    "f": float,
    "b": bool,
    "u": Annotated[
        int, msgspec.Meta(ge=0)
    ],  # the largest is checked with the array: it may not fit msgspec's limits
    "i": int,
}


def leaf_type(dtype: np.dtype[Any]) -> Any:
    """What msgspec shall take for one element: no booleans for numbers, no fractions for integers."""
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


def as_array(spec: TensorSpec, value: Json) -> Array:
    """Turn a JSON value into an array of an input's dtype and rank.

    Args:
        spec: The input.
        value: All its rows.

    Raises:
        InvalidRequest: It holds something else, is nested otherwise, or ragged.
    """
    if spec.dtype == STRING:
        return _string_array(spec, value)
    try:
        typed = msgspec.convert(value, _nested_type(spec.dtype, len(spec.shape) + 1))
        with np.errstate(
            over="ignore"
        ):  # too large for float32 is infinity, as the client's own cast would make it
            return np.array(typed, dtype=spec.dtype)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"expected {spec}: {error}", field=spec.name) from error
    except OverflowError as error:
        raise InvalidRequest(f"expected {spec}: a number is too large", field=spec.name) from error
    except ValueError as error:
        raise InvalidRequest(f"expected {spec}, got a ragged list", field=spec.name) from error


def _string_array(spec: TensorSpec, value: Json) -> Array:
    shape: list[int] = []
    flat: Sequence[Json] = [value]
    for _ in range(len(spec.shape) + 1):
        sizes = {len(one) if isinstance(one, list) else -1 for one in flat}
        if len(sizes) != 1 or sizes == {-1}:
            raise InvalidRequest(
                f"expected {spec}, got a list that is ragged or not as deep", field=spec.name
            )
        shape.append(sizes.pop())
        flat = list(chain.from_iterable(flat))
        if not flat:
            break
    filled = np.empty(len(flat), STRING)
    filled[:] = [as_bytes(one, spec.name) for one in flat]
    return filled.reshape(shape)


def as_bytes(value: Json, field: str) -> bytes:
    """The bytes of a string, or of an object ``{"b64": …}``.

    Args:
        value: The string or object.
        field: Whose it is, for the error.

    Raises:
        InvalidRequest: It is neither, or not base64.
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:  # half a surrogate pair
            raise InvalidRequest(f"expected text: {error.reason}", field=field) from error
    if not _is_base64(value):
        raise InvalidRequest(f'expected a string or {{"b64": "…"}}, got {_kind(value)}', field=field)
    try:
        return base64.b64decode(value[_BASE64], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"expected base64: {error}", field=field) from error


def examples_of(document: dict[str, Json]) -> list[dict[str, list[Json]]]:
    """The examples of a body for classify or regress: feature by feature, each a list of values.

    What the context says holds for each example that does not say it itself.

    Raises:
        InvalidRequest: They are not a list of objects of values.
    """
    given = document.get("examples")
    if not isinstance(given, list) or not given:
        got = _kind(given) if "examples" in document and given != [] else "none"
        raise InvalidRequest(f"expected a list of at least one example, got {got}", field="examples")
    context = _features(document["context"], "context") if "context" in document else {}
    return [{**context, **_features(one, f"examples[{index}]")} for index, one in enumerate(given)]


def _features(example: Json, field: str) -> dict[str, list[Json]]:
    if not isinstance(example, dict):
        raise InvalidRequest(f"expected an object, got {_kind(example)}", field=field)
    return {
        name: [_feature(one, f"{field}.{name}") for one in (values if isinstance(values, list) else [values])]
        for name, values in example.items()
    }


def _feature(value: Json, field: str) -> int | float | bytes:
    if isinstance(value, int | float):
        return int(value) if isinstance(value, bool) else value
    return as_bytes(value, field)


# ---- Answers ----


def print_json(document: object) -> bytes:
    """Print JSON, with NaN and infinities as the tokens that parsing accepts."""
    body = _encode(document)
    if b"null" in body:  # how msgspec prints what is not finite
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return body


def print_predictions(tensors: Iterable[tuple[str, Array]], *, by_row: bool) -> bytes:
    """Print Predict's answer: ``predictions`` for rows, ``outputs`` for columns; one output has no name.

    Args:
        tensors: The outputs.
        by_row: Whether the request came in rows.
    """
    values = {name: json_values(name, tensor) for name, tensor in tensors}
    if len(values) == 1:
        (only,) = values.values()
        return print_json({"predictions" if by_row else "outputs": only})
    if not by_row:
        return print_json({"outputs": values})
    return print_json(
        {"predictions": [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]}
    )


def json_values(name: str, tensor: Array) -> list[Json]:
    """An output as nested lists.

    Strings are printed as base64 if the output's name ends in ``_bytes``, and where they are not UTF-8.

    Args:
        name: Its name.
        tensor: Its values.
    """
    code = tensor.dtype.char
    if code == STRING.char:
        printed = np.empty(tensor.size, STRING)
        printed[:] = [_string(value, as_base64=name.endswith(_BYTES_SUFFIX)) for value in tensor.ravel()]
        return cast("list[Json]", printed.reshape(tensor.shape).tolist())
    if code not in _SHORTENED:
        return cast("list[Json]", tensor.tolist())
    if tensor.size == 1:  # the commonest answer of all
        only: Json = float(str(tensor[(0,) * tensor.ndim]))
        for _ in range(tensor.ndim):
            only = [only]
        return cast("list[Json]", only)
    return cast("list[Json]", shortest(tensor).tolist())


def _string(value: bytes, *, as_base64: bool) -> Json:
    if not as_base64:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {_BASE64: base64.b64encode(value).decode()}
