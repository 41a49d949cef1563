"""What REST and gRPC share: tensors as they came, turned into checked inputs, and their datatypes.

Whatever form a tensor came in, it becomes bytes of its datatype first, or a list of strings; one check serves
all forms.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from headrace.absent import Expansion
from headrace.errors import InvalidRequest, Unsupported, shown
from headrace.servable import (
    CheckedInputs,
    Expanded,
    RowLayout,
    Signature,
    TensorSpec,
    charge_spread,
    spread_columns,
)
from headrace.tensors import BY_DTYPE, BY_OIP, DATATYPES, STRING, Array, Buffer

if TYPE_CHECKING:
    from headrace.frontends.wire.allowance import Allowance

BYTES = "BYTES"
BFLOAT16 = "BF16"

# array.array's codes: it refuses what does not fit, in every version.
ARRAY_CODES = {
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP32": "f", "FP64": "d",
}  # fmt: skip

# Datatypes whose bytes are taken as they are, by NumPy's character: a look-up by dtype hashes it each time.
_EXACT = {one.dtype.char: (one.oip, one.dtype.itemsize) for one in DATATYPES if one.dtype.kind in "fiu"}

_LENGTH = Struct("<I")
MOST_DIMENSIONS = 32

TEXT_BYTES = 41
"""What a text takes beside its bytes: an object, and its place in an array."""

_NAMES_TOO_MANY = 100
_SPREAD_BYTES = 256 * 1024
_STEP = 1024
_FEW = 32
_STEP_BYTES = 256 * 1024
_MOST_ELEMENTS = 1 << 48  # beyond any message, and within what NumPy can address


Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]
"""Work in small steps, in between which others may go on; ``run`` does it at once."""


class WireTensor(NamedTuple):
    """One input as it came.

    Attributes:
        name: The input's name.
        datatype: What the client says it is.
        shape: What the client says its shape is, rows first.
        values: The raw form: little-endian numbers, or strings each after its length; or strings, in a list
            or an array.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: bytes | memoryview | list[bytes] | Array


def datatype_name(spec: TensorSpec) -> str:
    """The datatype of an input or output in the protocol's words."""
    return BY_DTYPE[spec.dtype].oip


def metadata_shape(signature: Signature, spec: TensorSpec) -> list[int]:
    """The shape of an input or output with its rows, -1 for what may vary."""
    return [signature.rows or -1, *(-1 if size is None else size for size in spec.shape)]


def check_names(signature: Signature, names: Iterable[str]) -> None:
    """Check the names of a request's inputs, before anything is done with their values.

    Args:
        signature: What is called.
        names: The names, in the request's order; of many too many, only the first are looked at.

    Raises:
        InvalidRequest: An input is missing, unknown or twice there.
    """
    given: dict[str, None] = {}
    for name in islice(names, len(signature.inputs) + _NAMES_TOO_MANY):
        if name in given:
            raise InvalidRequest(f"input {shown(name)} is given twice; give it once", field="inputs")
        given[name] = None
    signature.check_names(given)


def check(
    signature: Signature, tensors: Sequence[WireTensor], allowance: Expansion | None = None
) -> CheckedInputs:
    """Check a request's tensors against a signature, at once; see ``checking``."""
    return run(checking(signature, tensors, allowance))


def checking(
    signature: Signature, tensors: Sequence[WireTensor], allowance: Expansion | None = None
) -> Steps[CheckedInputs]:
    """Check a request's tensors against a signature, in small steps where much is spread.

    Args:
        signature: What is called.
        tensors: The request's.
        allowance: What may be spread.

    Raises:
        InvalidRequest: An input is missing, unknown, twice there, or of the wrong datatype, shape or size.
        TooLarge: What is spread takes too much.
    """
    check_names(signature, (tensor.name for tensor in tensors))
    by_name = {tensor.name: tensor for tensor in tensors}
    allowance = allowance or Expanded()
    exact = yield from _exact(signature, by_name, allowance)
    if exact is not None:
        return exact
    arrays = {name: as_array(tensor) for name, tensor in by_name.items()}
    return signature.check(arrays, exact=True, allowance=allowance)


def _exact(
    signature: Signature, by_name: dict[str, WireTensor], allowance: Expansion
) -> Steps[CheckedInputs | None]:
    """Take the tensors' bytes as columns as they are; None where that is not right, or something is wrong."""
    columns, shapes, all_rows = [], [], []
    for spec in signature.inputs:
        tensor = by_name[spec.name]
        if not is_exact(spec, tensor):
            return None
        all_rows.append(tensor.shape[0])
        columns.append(cast("bytes", tensor.values))
        shapes.append(tensor.shape[1:])
    rows = all_rows[signature.counted]
    layout = signature.layout(tuple(shapes))
    spread = spread_inputs(signature, all_rows)
    if spread is None:
        return None
    charge_spread(spread, layout, rows, allowance)
    if not is_spread_at_once(spread, layout, rows):
        return CheckedInputs(layout, (yield from _spreading(columns, spread, rows)), rows)
    return CheckedInputs(layout, spread_columns(columns, spread, layout, rows), rows)


def is_spread_at_once(spread: Sequence[int], layout: RowLayout, rows: int) -> bool:
    """Whether spreading takes little enough to be done at once, and to be counted with the call itself.

    Args:
        spread: Which columns came with one row.
        layout: How a row lies in memory.
        rows: How many rows the others have.
    """
    return all(layout.row_bytes[index] * rows <= _SPREAD_BYTES for index in spread)


def _spreading(columns: Sequence[Buffer], spread: Sequence[int], rows: int) -> Steps[tuple[Buffer, ...]]:
    """What ``spread_columns`` does, in small steps."""
    whole = list(columns)
    for index in spread:
        row: Array = np.frombuffer(whole[index], np.uint8)
        column = np.empty((rows, len(row)), np.uint8)
        step = max(1, _SPREAD_BYTES // len(row))
        for start in range(0, rows, step):
            column[start : start + step] = row
            yield
        whole[index] = column.reshape(-1).data
    return tuple(whole)


def spread_inputs(signature: Signature, rows: Sequence[int]) -> tuple[int, ...] | None:
    """Which inputs came with one row for all, being of the context; None if the rows disagree.

    Args:
        signature: What is called.
        rows: How many rows each input came with, in the signature's order.
    """
    wanted = rows[signature.counted]
    other = tuple([index for index, count in enumerate(rows) if count != wanted])
    return other if all(rows[index] == 1 and signature.inputs[index].context for index in other) else None


def is_exact(spec: TensorSpec, tensor: WireTensor) -> bool:
    """Whether a tensor's bytes are what the batch wants.

    Not so for strings, for booleans (any byte but 0 means true), and for tensors without values.
    """
    shape = tensor.shape
    datatype, item_bytes = _EXACT.get(spec.dtype.char, (None, 0))
    return (
        datatype == tensor.datatype
        and len(shape) > 0
        and min(shape) > 0
        and (shape[1:] == spec.shape or spec.accepts(shape[1:]))
        and item_bytes * math.prod(shape) == len(tensor.values)
    )


def as_array(tensor: WireTensor) -> Array:
    """View a tensor as an array of its own datatype; BF16 is widened to float32, which is exact.

    Raises:
        InvalidRequest: The datatype is unknown, or the values do not fill the shape.
    """
    count = _element_count(tensor)
    if tensor.datatype == BYTES:
        return _string_array(tensor, count)
    item_bytes = 2 if tensor.datatype == BFLOAT16 else _dtype(tensor).itemsize
    if len(tensor.values) != count * item_bytes:
        raise InvalidRequest(
            f"expected {count * item_bytes} bytes for {tensor.datatype} {list(tensor.shape)}, "
            f"got {len(tensor.values)}; make the shape and the data agree",
            field=tensor.name,
        )
    raw = tensor.values
    if not isinstance(raw, bytes | memoryview):
        raise InvalidRequest(f"expected numbers for {tensor.datatype}, got strings", field=tensor.name)
    if tensor.datatype == BFLOAT16:
        widened = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
        return widened.view(np.float32).reshape(tensor.shape)
    if tensor.datatype == "BOOL":
        truth: Array = np.frombuffer(raw, np.uint8) != 0
        return truth.reshape(tensor.shape)
    array: Array = np.frombuffer(raw, _dtype(tensor)).reshape(tensor.shape)
    return array


def _dtype(tensor: WireTensor) -> np.dtype[np.generic]:
    known = BY_OIP.get(tensor.datatype)
    if known is None:
        raise InvalidRequest(
            f"unknown datatype {shown(tensor.datatype)}; expected one of {', '.join(BY_OIP)} or {BFLOAT16}",
            field=tensor.name,
        )
    return known.dtype


def wire_shape(field: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of a tensor as it came, if it can be one.

    Args:
        field: Whose it is, for the error.
        sizes: The shape's sizes; many too many are not looked at.

    Raises:
        InvalidRequest: It has too many dimensions, or one that is negative.
    """
    if len(sizes) > MOST_DIMENSIONS:  # also keeps their product cheap
        raise InvalidRequest(f"expected at most {MOST_DIMENSIONS} dimensions, got {len(sizes)}", field=field)
    shape = tuple(sizes)
    if shape and min(shape) < 0:
        raise InvalidRequest(
            f"expected sizes of 0 or more in the shape, got {list(shape)}; -1 stands in metadata only",
            field=field,
        )
    return shape


def numbers(field: str, datatype: str, dtype: np.dtype[np.generic], values: Sequence[int | float]) -> Array:
    """Numbers of a message, which came one by one.

    Args:
        field: Whose they are, for the error.
        datatype: What the client calls them.
        dtype: What they become.
        values: A message's repeated field, which hands its numbers to NumPy at once.

    Raises:
        InvalidRequest: One does not fit.
    """
    if not values:
        return np.empty(0, dtype)
    array = np.asarray(values)
    if dtype.kind in "iu" and array.dtype.itemsize > dtype.itemsize:
        limits = np.iinfo(dtype.char)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise InvalidRequest(f"a value does not fit in {datatype}", field=field)
    return array.astype(dtype, copy=False)


def _element_count(tensor: WireTensor) -> int:
    shape = wire_shape(tensor.name, tensor.shape)
    if math.prod(size or 1 for size in shape) > _MOST_ELEMENTS:
        raise InvalidRequest(f"shape {list(shape)} is too large for any message", field=tensor.name)
    return math.prod(shape)


def _string_array(tensor: WireTensor, count: int) -> Array:
    if isinstance(tensor.values, bytes):
        return run(splitting(tensor.name, tensor.values, count)).reshape(tensor.shape)
    if len(tensor.values) != count:
        raise _wrong_count(tensor.name, count, len(tensor.values))
    return run(gathering(cast("list[bytes] | Array", tensor.values))).reshape(tensor.shape)


def gathering(strings: Sequence[bytes] | Array) -> Steps[Array]:
    """Put strings into an array, in small steps.

    Args:
        strings: The strings, in anything that can be cut; an array stays as it is.
    """
    if isinstance(strings, np.ndarray):
        return strings
    array, size = np.empty(len(strings), STRING), 0
    for start in range(0, len(strings), _FEW):
        part = strings[start : start + _FEW]
        array[start : start + _FEW] = part
        size += _STEP_BYTES // _STEP * len(part) + sum(map(len, part))
        if size >= _STEP_BYTES:
            size = 0
            yield
    return array


def splitting(field: str, raw: bytes, count: int) -> Steps[Array]:
    """Take strings out of their raw form, in small steps; each stands after its length, four bytes.

    Args:
        field: Whose they are, for the error.
        raw: All of them.
        count: How many there shall be.

    Raises:
        InvalidRequest: A string is cut off, or there are more or fewer.
    """
    end, position, found = len(raw), 0, 0
    if count * _LENGTH.size > end:
        raise _wrong_count(field, count, f"{end} bytes")
    array = np.empty(count, STRING)
    while position < end:
        strings: list[bytes] = []
        enough = position + _STEP_BYTES
        while position < end and position < enough and len(strings) < _STEP:
            start = position + _LENGTH.size
            position = start + _LENGTH.unpack_from(raw, position)[0] if start <= end else start
            if position > end:
                raise InvalidRequest(
                    f"string {found + len(strings)} is cut off: it wants {position - end} bytes more; "
                    "write each string after its length, four bytes little-endian",
                    field=field,
                )
            strings.append(raw[start:position])
        if found + len(strings) > count:
            raise _wrong_count(field, count, "more")
        array[found : found + len(strings)] = strings
        found += len(strings)
        yield
    if found != count:
        raise _wrong_count(field, count, found)
    return array


def texts_of(tensor: WireTensor, raw: bytes, allowance: Allowance) -> Steps[Array]:
    """Take a tensor's strings out of their raw form, in small steps, once they are counted.

    Args:
        tensor: The tensor.
        raw: Its strings, each after its length.
        allowance: What the request may cost.

    Raises:
        InvalidRequest: A string is cut off, or there are more or fewer than the shape says.
        TooLarge: The request has too many.
    """
    count = _element_count(tensor)
    allowance.values(min(count, len(raw)), tensor.name)
    allowance.hold(TEXT_BYTES * min(count, len(raw) // _LENGTH.size))
    return (yield from splitting(tensor.name, raw, count))


def refuse_texts(spec: TensorSpec, datatype: str, shape: Sequence[int]) -> None:
    """Refuse texts for an input of numbers before one is decoded.

    Args:
        spec: What is wanted.
        datatype: What the client says that it sends.
        shape: In which shape.

    Raises:
        InvalidRequest: Texts would come.
    """
    if datatype == BYTES and spec.dtype != STRING:
        raise InvalidRequest(
            f"expected {spec}, got {BYTES} {list(shape[:MOST_DIMENSIONS])}; convert it before sending, "
            "nothing is lost silently",
            field=spec.name,
        )


def run(steps: Steps[Result]) -> Result:
    """Do all steps of something at once, and give what they result in."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Result", end.value)


def _wrong_count(field: str, count: int, got: object) -> InvalidRequest:
    return InvalidRequest(
        f"expected {count} strings for its shape, got {got}; make the shape and the data agree", field=field
    )


def text_parts(texts: Array) -> Iterator[list[bytes]]:
    """Cut texts into parts that are written at once; a long text is one alone.

    Args:
        texts: The texts, in an array of any shape.
    """
    flat = texts.ravel()
    for start in range(0, len(flat), _STEP):
        part, size = list[bytes](), 0
        for text in flat[start : start + _STEP].tolist():
            if part and size + len(text) > _STEP_BYTES:
                yield part
                part, size = [], 0
            part.append(text)
            size += len(text)
        yield part


def raw_texts(texts: Array) -> Iterator[list[bytes]]:
    """Write texts in their raw form, in pieces that are made in small steps; a long one is not copied."""
    for part in text_parts(texts):
        if len(part) == 1:
            yield [_LENGTH.pack(len(part[0])), part[0]]
        else:
            yield [join_strings(part)]


def join_strings(strings: Iterable[bytes]) -> bytes:
    """Write strings in their raw form."""
    pack = _LENGTH.pack
    return b"".join([part for string in strings for part in (pack(len(string)), string)])


def version_number(text: str) -> int | None:
    """The version that a request names; None for the default one.

    Raises:
        InvalidRequest: It is not a number.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(1 << 63))):
        raise InvalidRequest(
            f"expected a number, got {text!r:.40}; leave it empty for the default", field="version"
        )
    return int(text)


def refuse_parameters(parameters: Iterable[str], field: str) -> None:
    """Refuse what would change the meaning of a tensor; other parameters are ignored, as the protocol allows.

    Args:
        parameters: The parameters' names.
        field: The tensor they came with.

    Raises:
        Unsupported: One asks for shared memory or for classification.
    """
    for name in parameters:
        if name.startswith("shared_memory_"):
            raise Unsupported(
                f"{field}: shared memory is not supported; send and take tensors in the messages"
            )
        if name == "classification":
            raise Unsupported(
                f"{field}: classification is not supported; ask for the output and rank it yourself"
            )
