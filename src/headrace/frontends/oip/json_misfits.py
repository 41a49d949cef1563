"""Errors for JSON that is no request: the wrong part, the expected and the actual value, and the way out.

This code runs only for requests that are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.base.errors import InvalidRequest, listed, shown
from headrace.base.tensors import BY_DTYPE, BY_OIP
from headrace.frontends.wire.json_misfits import binary_instead
from headrace.frontends.wire.json_text import Json, decode
from headrace.frontends.wire.tensors import MOST_DIMENSIONS, WireTensor
from headrace.model import misfits
from headrace.model.misfits import WORDS, got, position, position_in, remedy, said
from headrace.model.servable import TensorSpec

if TYPE_CHECKING:
    from headrace.frontends.oip.json_values import InferInput

INFER = 'send {"inputs": [{"name": …, "datatype": …, "shape": […], "data": […]}]}'
"""The way out for a body of ``/infer``."""

_BINARY = (
    "send JSON, with its length in the header Inference-Header-Content-Length if binary data follows after it"
)
_NO_NAN = "send null for a missing value, or the input as binary data"
_NAN = re.compile("(NaN|Infinity) is not")
_KIND_OF = {"int": "i", "float": "f", "bool": "b", "str": "O"}
"""The kind of dtype for each type of msgspec's messages, and of Python."""

_LISTS = {"array": "a list", "object": "an object"}
_STEP = re.compile(r"\.([a-z_]+)|\[(\d+)\]")
_FIELDS = {
    "inputs": "every input needs 'name', 'datatype', 'shape' and 'data'",
    "outputs": "every output needs 'name'",
}


# ---- The body ----


def wrong_body(text: bytes, error: Exception, way_out: str) -> InvalidRequest:
    """Return the error for a body that msgspec refused.

    Args:
        text: The body, short enough to be parsed at once.
        error: The refusal.
        way_out: The form of a right body.
    """
    if not text.strip():
        return InvalidRequest(f"expected JSON, got nothing; {way_out}", field="body")
    if (binary := binary_instead(text, _BINARY)) is not None:
        return binary
    if "trailing characters" in str(error):
        return InvalidRequest(
            f"{error}; if binary data follows the JSON, set the header Inference-Header-Content-Length to "
            "the JSON's length",
            field="body",
        )
    if isinstance(error, UnicodeDecodeError):
        return InvalidRequest(
            f"expected UTF-8, got {error.reason}; send other bytes as binary data", field="body"
        )
    try:
        document = decode(text, nan=False)
    except InvalidRequest as wrong:
        told = wrong.message.removeprefix("body: ")
        return InvalidRequest(f"{told}; {_NO_NAN if _NAN.search(told) else way_out}", field="body")
    return _wrong_part(document, str(error), way_out)


def _wrong_part(document: Json, error: str, way_out: str) -> InvalidRequest:
    """Return the error for the part of a document that has another type, or lacks a field."""
    told, _, path = error.partition(" - at `$")
    steps = [name or int(index) for name, index in _STEP.findall(path)]
    field, value, named = path.rstrip("`").removeprefix(".") or "body", document, ""
    quoted = re.findall("`([^`]*)`", told)
    try:
        for number, step in enumerate(steps):
            value = value[step]
            if number == 1 and isinstance(value, dict) and isinstance(value.get("name"), str):
                named = f" of {shown(value['name'])}"
    except (LookupError, TypeError):  # a field comes twice, and this is its last value
        quoted = []
    field += named
    if "out of range" in told:
        told = f"expected a number of at most 64 bits, got {said(value)}"
        return InvalidRequest(f"{told}; {_form(steps, document, way_out)}", field=field)
    if not quoted:
        return InvalidRequest(f"{told}; {way_out}", field=field)
    if told.startswith("Object missing"):
        return InvalidRequest(f"missing {quoted[0]!r}; {_form(steps, document, way_out)}", field=field)
    wanted = quoted[0].partition(" ")[0]
    kind = _KIND_OF.get(wanted, "")
    fix = remedy(kind, value) if kind else _form(steps, document, way_out)
    expected = _LISTS.get(wanted) or WORDS.get(kind, wanted)
    return InvalidRequest(f"expected {expected}, {got(value, fix)}", field=field)


def _form(steps: Sequence[str | int], document: Json, way_out: str) -> str:
    """Return the form that a part of a body has."""
    match steps:
        case [] if isinstance(document, dict) and "instances" in document:
            return f"{way_out}, or send instances to /v1/models/NAME:predict"
        case ["inputs" | "outputs" as one, int()]:
            return _FIELDS[one]
        case ["inputs", int(), "shape", *_]:
            return "send the sizes as a list, rows first"
        case [*_, "parameters"]:
            return "send the parameters by name"
    return way_out


def wrong_parameter(name: str, text: bytes, kind: type, of: str = "") -> InvalidRequest:
    """Return the error for a parameter of another type.

    Args:
        name: The parameter.
        text: Its JSON.
        kind: The expected type: ``bool``, ``int`` or ``str``.
        of: The input or output that has it; "" for the request.
    """
    value, kind_of_dtype = decode(text, nan=False), _KIND_OF[kind.__name__]
    told = f"expected {WORDS[kind_of_dtype]}, {got(value, remedy(kind_of_dtype, value))}"
    return InvalidRequest(told, field=f"{of}.{name}" if of else name)


# ---- Values ----


def _as_sent(tensor: InferInput, sizes: Sequence[int] | None = None) -> TensorSpec:
    """Return the input as the client describes it."""
    row: tuple[int | None, ...] = tuple(tensor.shape[1:] if sizes is None else sizes)
    if any(not size or size < 0 for size in row):  # then an index does not tell the row
        row = (None,)
    return TensorSpec(tensor.name, BY_OIP[tensor.datatype].dtype, row)


def _shape(tensor: InferInput) -> str:
    return f"[{listed(map(said, tensor.shape[:MOST_DIMENSIONS]))}]"


def wrong_element(
    tensor: InferInput, spec: TensorSpec, value: Json, number: int, sizes: Sequence[int] | None = None
) -> InvalidRequest:
    """Return the error for a value of another type than the datatype, or beyond its limits.

    Args:
        tensor: The input as received.
        spec: The expected input.
        value: The value.
        number: Its number among all values.
        sizes: The sizes of a row; None for those of the shape.
    """
    sent = _as_sent(tensor, sizes)
    is_other = BY_DTYPE[spec.dtype].oip != tensor.datatype or isinstance(value, list)
    way_out = f"the input is {spec}" if is_other else None
    return misfits.wrong_element(sent, value, position_in(sent, number), way_out)


def not_text(tensor: InferInput, values: Sequence[str], first: int) -> InvalidRequest:
    """Return the error for the first text that is not valid Unicode.

    Args:
        tensor: The input as received.
        values: Some of its texts.
        first: Number of the first of them among all.
    """
    number = next(at for at, text in enumerate(values) if any("\ud800" <= one <= "\udfff" for one in text))
    where = position_in(_as_sent(tensor), first + number)
    return InvalidRequest(
        f"{where}expected text, got half of a surrogate pair; send other bytes as binary data",
        field=tensor.name,
    )


def no_list(tensor: InferInput, value: Json, place: Sequence[int], size: int | None = None) -> InvalidRequest:
    """Return the error for a value in place of a list.

    Args:
        tensor: The input as received.
        value: The value.
        place: Indices of the value; empty for all values.
        size: Number of values of the list; None for all values.
    """
    wanted = "a list of values" if size is None else f"a list of {size}"
    return InvalidRequest(
        f"{position(place)}expected {wanted}, got {said(value)}; send them flat, or nested like the shape "
        f"{_shape(tensor)}",
        field=tensor.name,
    )


def another_length(tensor: InferInput, place: Sequence[int], size: int, length: int) -> InvalidRequest:
    """Return the error for a list of another length than the shape says.

    Args:
        tensor: The input as received.
        place: Indices of the list; empty for that of all rows.
        size: The expected length.
        length: The actual one.
    """
    what = "value" if place else "row"
    return InvalidRequest(
        f"{position(place)}expected {size} {what}{'' if size == 1 else 's'}, as the shape {_shape(tensor)} "
        f"says, got {length}; make the shape and the data agree",
        field=tensor.name,
    )


def not_nested_so(tensor: InferInput, spec: TensorSpec) -> InvalidRequest:
    """Return the error for lists that are nested like the input's rows, where the shape says otherwise."""
    return InvalidRequest(
        f"expected lists nested like the shape {_shape(tensor)}, got lists nested like {spec}; make the "
        "shape and the data agree",
        field=tensor.name,
    )


def wrong_count(inputs: Sequence[InferInput], tensors: Sequence[WireTensor]) -> InvalidRequest | None:
    """Return the error for the first input whose JSON has another number of values than its shape says.

    Args:
        inputs: The inputs as received.
        tensors: The same, decoded.
    """
    for one, tensor in zip(inputs, tensors, strict=True):
        if isinstance(one.data, msgspec.UnsetType) or not isinstance(tensor.values, bytes):
            continue
        values, shape = len(tensor.values) // BY_OIP[one.datatype].dtype.itemsize, tensor.shape
        wanted = math.prod(shape)
        if min(shape, default=0) >= 0 and values != wanted:
            return InvalidRequest(
                f"expected {said(wanted)} value{'' if wanted == 1 else 's'} for the shape {_shape(one)}, got "
                f"{values}; make the shape and the data agree",
                field=one.name,
            )
    return None
