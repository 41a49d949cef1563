"""Tensors in the binary form of the Open Inference Protocol over REST, as a client sends and gets them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from headrace.base.errors import ModelError, shown
from headrace.base.tensors import BY_DTYPE, BY_OIP, STRING, Array
from headrace.client.rest import Reply

_HEADER = "Inference-Header-Content-Length"
_LENGTH = struct.Struct("<I")
_MOST_DIMENSIONS = 32
_MOST_DIGITS = 19
_MOST_VALUES = 2**59


class Tensor(msgspec.Struct):
    """The description of a tensor in JSON.

    Attributes:
        name: Name of the input or output.
        datatype: The protocol's name for its datatype.
        shape: Sizes of all axes; the first one is rows.
        parameters: Further properties, such as the number of bytes.
    """

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = {}


class _Answer(msgspec.Struct):
    outputs: list[Tensor]
    model_version: str = ""


def decoded(text: bytes, kind: type[Any]) -> Any:
    """Decode the JSON of an answer.

    Raises:
        ModelError: It is not of that kind.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"expected an answer of the Open Inference Protocol: {error}") from error


class Input(NamedTuple):
    """One input of a request.

    Attributes:
        described: Its description in JSON.
        raw: Its values in binary form; empty if the description contains them.
    """

    described: bytes
    raw: bytes


def packed(name: str, values: Array) -> Input:
    """Return an input in binary form.

    Args:
        name: Name of the input.
        values: Its values, of a dtype of ``DATATYPES``.
    """
    raw = _texts_packed(values) if values.dtype == STRING else values.tobytes()
    described = {
        "name": name,
        "datatype": BY_DTYPE[values.dtype].oip,
        "shape": values.shape,
        "parameters": {"binary_data_size": len(raw)},
    }
    return Input(json.dumps(described).encode(), raw)


def _texts_packed(values: Array) -> bytes:
    parts: list[bytes] = []
    for one in values.flat:
        parts += (_LENGTH.pack(len(one)), one)
    return b"".join(parts)


def message(inputs: Sequence[Input], outputs: Sequence[str]) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a request whose outputs are wanted in binary form.

    Args:
        inputs: The inputs.
        outputs: Names of the outputs; all if empty.
    """
    wanted = b'"parameters": {"binary_data_output": true}'
    if outputs:
        named = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        wanted = b'"outputs": ' + json.dumps(named).encode()
    text = b'{"inputs": [%b], %b}' % (b", ".join(one.described for one in inputs), wanted)
    headers = {_HEADER: str(len(text)), "Content-Type": "application/octet-stream"}
    return headers, b"".join([text, *(one.raw for one in inputs)])


def answered(reply: Reply) -> tuple[int | None, dict[str, Array]]:
    """Read an answer.

    Args:
        reply: The response to a request.

    Returns:
        The version that answered, if the server names it, and the outputs by name, which may be written to.

    Raises:
        ModelError: The answer is not of the protocol, or contains an output that is not in binary form.
    """
    size = _number(reply.headers.get(_HEADER, ""))
    if size is None:
        size = len(reply.body)
    answer: _Answer = decoded(reply.body[:size], _Answer)
    raw, found, start = bytearray(memoryview(reply.body)[size:]), {}, 0
    for one in answer.outputs:
        stop = start + _size_of(one, len(raw) - start)
        found[one.name] = _unpacked(one, memoryview(raw)[start:stop])
        start = stop
    if start != len(raw):
        raise ModelError(f"expected {start} bytes of binary data, got {len(raw)}")
    return _number(answer.model_version), found


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _size_of(output: Tensor, left: int) -> int:
    size = output.parameters.get("binary_data_size")
    if not isinstance(size, int) or not 0 <= size <= left:
        raise ModelError(
            f"the output {shown(output.name)}: expected a binary_data_size from 0 to {left}, "
            f"got {shown(str(size))}"
        )
    return size


def _unpacked(output: Tensor, raw: memoryview) -> Array:
    known = BY_OIP.get(output.datatype)
    if known is None:
        raise ModelError(f"the output {shown(output.name)} has the datatype {shown(output.datatype)}")
    if len(output.shape) > _MOST_DIMENSIONS or any(size < 0 for size in output.shape):
        raise ModelError(f"the output {shown(output.name)}: expected sizes, got {output.shape[:8]}")
    count = math.prod(output.shape)
    if not count and math.prod(filter(None, output.shape)) > _MOST_VALUES:  # NumPy refuses such arrays
        raise ModelError(f"the output {shown(output.name)}: expected smaller sizes, got {output.shape[:8]}")
    if known.dtype == STRING:
        return _texts(output, raw, count).reshape(output.shape)
    if len(raw) != count * known.dtype.itemsize:
        expected = f"{count * known.dtype.itemsize} bytes of binary data"
        raise ModelError(f"the output {shown(output.name)}: expected {expected}, got {len(raw)}")
    return np.frombuffer(raw, known.dtype).reshape(output.shape)


def _texts(output: Tensor, raw: memoryview, count: int) -> Array:
    texts: list[bytes] = []
    start, end = 0, len(raw)
    while start + _LENGTH.size <= end and len(texts) < count:
        first = start + _LENGTH.size
        start = first + _LENGTH.unpack_from(raw, start)[0]
        texts.append(bytes(raw[first:start]))
    if start != end or len(texts) != count:
        raise ModelError(f"the output {shown(output.name)}: expected {count} texts in {end} bytes")
    made = np.empty(count, STRING)
    made[:] = texts
    return made
