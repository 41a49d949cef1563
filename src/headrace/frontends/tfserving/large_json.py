"""Large JSON bodies and answers: as ``json_bodies``, in slices with other requests in between."""

from __future__ import annotations

import base64
import codecs
import math
import secrets
from collections.abc import AsyncIterator, Mapping
from itertools import chain
from typing import NamedTuple, cast

import numpy as np

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import STRING, Array
from headrace.frontends.tfserving import json_bodies
from headrace.frontends.wire import json_output, long_lists
from headrace.frontends.wire.json_text import Json
from headrace.frontends.wire.request_budget import RequestBudget
from headrace.frontends.wire.texts import decoding
from headrace.frontends.wire.time_slicer import TimeSlicer, in_steps, joined
from headrace.model.misfits import position_in, ragged
from headrace.model.missing_values import complete
from headrace.model.servable import Signature, TensorSpec

_BASE64_STEP = 256 * 1024  # characters: a multiple of four
_BREATH_BYTES = 64 * 1024
_TEXT_BYTES = 256  # so many are decoded in the time that any text takes
_CHARACTERS_A_VALUE = 128
_LONG_BYTES = 192 * 1024  # a multiple of three


# ---- Requests ----


async def columns_of(
    document: dict[str, Json], signature: Signature, budget: RequestBudget, slicer: TimeSlicer
) -> tuple[dict[str, Array], bool]:
    """Return the inputs in a body, and whether they came as rows; the body is consumed.

    Args:
        document: The body.
        signature: The signature whose inputs are expected.
        budget: Limits the cost of the request.
        slicer: The time slicer, held by the caller.

    Raises:
        InvalidRequest: The body has not exactly one of ``instances`` and ``inputs``, or a value is invalid.
        TooLarge: Too many values would be filled in.
    """
    by_row = json_bodies.is_by_row(document)
    if by_row:
        given = await _columns_of_rows(document["instances"], signature, slicer)
    else:
        given = json_bodies.columns_in(document["inputs"], signature)
        signature.check_names(given)
    columns = {
        spec.name: await _as_array(spec, given[spec.name], budget, slicer) for spec in signature.inputs
    }
    return columns, by_row


async def _columns_of_rows(rows: Json, signature: Signature, slicer: TimeSlicer) -> dict[str, Json]:
    named = json_bodies.is_named(rows, signature)
    columns: dict[str, list[Json]] = {name: [] for name in signature.input_names}
    first = 0
    async for part in long_lists.used_up(rows, slicer):
        json_bodies.check_rows(part, first, named, signature)
        first += len(part)
        for name, column in columns.items():
            column.extend([row[name] for row in part] if named else part)
    return columns


async def _as_array(spec: TensorSpec, value: Json, budget: RequestBudget, slicer: TimeSlicer) -> Array:
    shape: list[int] = []
    flat: list[Json] = [value]
    for level in range(len(spec.shape) + 1):
        inner: list[Json] = []
        sizes: set[int] = set()
        step = _rows_a_step(spec) if level == 1 else long_lists.STEP
        async for came in _used_up_by_size(flat, slicer, step):
            part = _complete(spec, came, budget) if level == 1 else came
            sizes.update([len(one) if isinstance(one, list) else -1 for one in part])
            if len(sizes) != 1 or -1 in sizes:
                raise ragged(spec, None)
            inner += part[0] if len(part) == 1 else chain.from_iterable(part)
        shape.append(sizes.pop())
        flat = inner
        if not flat:
            break
    filled = np.empty(len(flat), spec.dtype)
    first = 0
    async for part in long_lists.used_up(flat, slicer):
        whole = part if spec.shape else _complete(spec, part, budget)
        filled[first : first + len(part)] = await _elements(spec, whole, first, slicer)
        first += len(part)
    return filled.reshape(shape)


async def _used_up_by_size(rows: list[Json], slicer: TimeSlicer, step: int) -> AsyncIterator[list[Json]]:
    """Yield the parts of a list of lists, by the number of values in them; empties the inner lists, too."""
    async for came in long_lists.used_up(rows, slicer, step):
        for part in long_lists.cut(came, list(map(_length, came)), long_lists.STEP):
            yield part
            for one in part:
                if isinstance(one, list):
                    one.clear()
            await slicer.breathe()


def _rows_a_step(spec: TensorSpec) -> int:
    """Return the number of rows for one step: fewer where each row may be filled up to many values."""
    if spec.absent is None:
        return long_lists.STEP
    return max(1, long_lists.STEP // max(1, math.prod(size or 1 for size in spec.shape)))


def _complete(spec: TensorSpec, rows: list[Json], budget: RequestBudget) -> list[Json]:
    """Fill in absent values of some rows; rows that are complete only take a quick check."""
    if len(spec.shape) > 1:
        needed = spec.absent is not None
    elif not spec.shape:
        needed = None in rows
    elif spec.shorter or spec.absent is not None or spec.shape == (1,):
        size = (spec.shape[0] or 0) if spec.shorter else 0
        needed = any(not isinstance(row, list) or len(row) < size or None in row for row in rows)
    else:
        needed = False
    return cast("list[Json]", complete(spec, rows, budget)) if needed else rows


async def _elements(spec: TensorSpec, part: list[Json], first: int, slicer: TimeSlicer) -> Array:
    if spec.dtype != STRING:
        return json_bodies.numbers(spec, part, first)
    texts = np.empty(len(part), STRING)
    short = _short_texts(part)
    if short is not None:
        texts[:] = short
        return texts
    size = 0
    for index, one in enumerate(part):
        try:
            texts[index] = text = await _as_bytes(one, spec.name, slicer)
        except InvalidRequest:
            if not json_bodies.is_base64(one):
                json_bodies.as_bytes(one, spec.name, position_in(spec, first + index))
            raise
        size += len(text) + _TEXT_BYTES
        if size > _BREATH_BYTES:
            size = 0
            await slicer.breathe()
    return texts


def _short_texts(part: list[Json]) -> list[bytes] | None:
    """Encode strings that are short together, the most common case; return None for anything else."""
    try:
        if sum(map(len, part)) <= _BASE64_STEP:
            return [one.encode() for one in part]
    except (TypeError, AttributeError, UnicodeEncodeError):
        pass
    return None


async def _as_bytes(value: Json, field: str, slicer: TimeSlicer) -> bytes:
    text = value.get(json_bodies.BASE64) if isinstance(value, dict) else None
    if not isinstance(text, str) or len(text) <= _BASE64_STEP or len(value) != 1:
        return json_bodies.as_bytes(value, field)
    parts = []
    try:
        for part in decoding(text, _BASE64_STEP):
            parts.append(part)
            await slicer.breathe()
    except ValueError as error:
        raise InvalidRequest(f"expected base64: {error}", field=field) from error
    return await in_steps(joined([*parts]), slicer)


async def examples_of(
    document: dict[str, Json], signature: Signature, budget: RequestBudget, slicer: TimeSlicer
) -> tuple[list[dict[str, list[Json]]], dict[str, list[Json]]]:
    """Return the examples and the context of a body, which is consumed; see ``json_bodies.examples_of``."""
    given = json_bodies.list_of_examples(document)
    shared = json_bodies.shared_features(document, len(given), signature, budget)
    found: list[dict[str, list[Json]]] = []
    async for part in long_lists.used_up(given, slicer):
        for one in part:
            found.append(await _features(one, f"examples[{len(found)}]", slicer))
            await slicer.breathe()
    return found, shared


async def _features(example: Json, field: str, slicer: TimeSlicer) -> dict[str, list[Json]]:
    if not isinstance(example, dict) or sum(map(_cost, example.values())) <= long_lists.STEP:
        return json_bodies.features(example, field)
    found: dict[str, list[Json]] = {}
    for name, values in example.items():
        if _cost(values) <= long_lists.STEP:
            found.update(json_bodies.features({name: values}, field))
        else:
            long = found[name] = []
            async for part in long_lists.used_up(values if isinstance(values, list) else [values], slicer):
                for some in long_lists.cut(part, [1 + _characters(one) for one in part], _BREATH_BYTES):
                    long += json_bodies.features({name: some}, field)[name]
                    await slicer.breathe()
        await slicer.breathe()
    return found


def _cost(values: Json) -> int:
    """Return the number of a feature's values, with its texts by their lengths."""
    if not isinstance(values, list):
        return 1 + _characters(values) // _CHARACTERS_A_VALUE
    if len(values) > long_lists.STEP:
        return len(values)
    return len(values) + sum(map(_characters, values)) // _CHARACTERS_A_VALUE


def _characters(value: Json) -> int:
    text = value.get(json_bodies.BASE64) if isinstance(value, dict) else value
    return len(text) if isinstance(text, str) else 0


def _length(values: Json) -> int:
    return len(values) if isinstance(values, list) else 1


# ---- Answers ----


async def print_predictions(tensors: Mapping[str, Array], *, by_row: bool, slicer: TimeSlicer) -> bytes:
    """Serialize Predict's answer in slices of rows; see ``json_bodies.print_predictions``."""
    texts = _LongTexts(by_row=by_row)
    tensors = {name: await texts.taken_out(name, tensor, slicer) for name, tensor in tensors.items()}
    if by_row:
        parts = []
        for rows in json_output.row_slices([*tensors.values()]):
            cut = {name: tensor[rows] for name, tensor in tensors.items()}
            parts.append(_within(json_bodies.print_predictions(cut, by_row=True)))
            await slicer.breathe()
        return await texts.put_back(
            await json_output.joined_by_commas(b'{"predictions":[', parts, b"]}", slicer), slicer
        )
    printed = [(name, await _print_tensor(name, tensor, slicer)) for name, tensor in tensors.items()]
    if len(printed) == 1:
        whole = b'{"outputs":' + printed[0][1] + b"}"
    else:
        members = [json_bodies.print_json(name) + b":" + one for name, one in printed]
        whole = b'{"outputs":{' + b",".join(members) + b"}}"
    return await texts.put_back(whole, slicer)


class _LongText(NamedTuple):
    row: int
    number: int
    mark: bytes
    value: bytes
    as_base64: bool


class _LongTexts:
    """Texts too long to serialize in one step; marks replace them until they are put back in pieces."""

    def __init__(self, *, by_row: bool) -> None:
        self._mark = secrets.token_hex(16).encode()
        self._by_row = by_row
        self._texts: list[_LongText] = []

    async def taken_out(self, name: str, tensor: Array, slicer: TimeSlicer) -> Array:
        """Return the tensor with marks in place of its long texts."""
        if tensor.dtype != STRING:
            return tensor
        flat, long = tensor.reshape(-1), list[int]()
        for start in range(0, len(flat), long_lists.STEP):
            part = enumerate(flat[start : start + long_lists.STEP], start)
            long += [index for index, one in part if len(one) > _LONG_BYTES]
            await slicer.breathe()
        if not long:
            return tensor
        short = tensor.copy()
        flat, a_row = short.reshape(-1), max(1, tensor.size // len(tensor)) if tensor.ndim else 1
        for index in long:
            row = index // a_row if self._by_row else 0
            mark = b"%s-%d-" % (self._mark, len(self._texts))
            as_base64 = name.endswith(json_bodies.BYTES_SUFFIX)
            self._texts.append(_LongText(row, len(self._texts), mark, flat[index], as_base64))
            flat[index] = mark
        return short

    async def put_back(self, printed: bytes, slicer: TimeSlicer) -> bytes:
        """Return the serialized answer with the long texts in place of their marks."""
        start, parts = 0, list[bytes]()
        for one in sorted(self._texts):  # in the order of the answer: row by row, or output by output
            mark = json_bodies.print_json(json_bodies.printed_text(one.mark, as_base64=one.as_base64))
            at = printed.index(mark, start)
            parts.append(printed[start:at])
            parts += await _print_long(one.value, slicer, as_base64=one.as_base64)
            start = at + len(mark)
        return await in_steps(joined([*parts, printed[start:]]), slicer) if parts else printed


async def _print_long(value: bytes, slicer: TimeSlicer, *, as_base64: bool) -> list[bytes]:
    starts = range(0, len(value), _LONG_BYTES)
    if not as_base64:
        decoder, parts = codecs.getincrementaldecoder("utf-8")(), []
        try:
            for start in (*starts, len(value)):
                piece = value[start : start + _LONG_BYTES]
                parts.append(json_bodies.print_json(decoder.decode(piece, final=not piece))[1:-1])
                await slicer.breathe()
        except UnicodeDecodeError:
            pass
        else:
            return [b'"', *parts, b'"']
    parts = []
    for start in starts:
        parts.append(base64.b64encode(value[start : start + _LONG_BYTES]))
        await slicer.breathe()
    return [b'{"%s":"' % json_bodies.BASE64.encode(), *parts, b'"}']


async def _print_tensor(name: str, tensor: Array, slicer: TimeSlicer) -> bytes:
    if not tensor.ndim:
        return json_bodies.print_json(json_bodies.json_values(name, tensor))
    parts = []
    for rows in json_output.row_slices([tensor]):
        parts.append(json_bodies.print_json(json_bodies.json_values(name, tensor[rows]))[1:-1])
        await slicer.breathe()
    return await json_output.joined_by_commas(b"[", parts, b"]", slicer)


def _within(printed: bytes) -> bytes:
    """Return the text between the brackets of ``{"predictions":[…]}``."""
    return printed[printed.index(b"[") + 1 : -2]
