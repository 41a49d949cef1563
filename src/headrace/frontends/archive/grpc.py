"""The archive over gRPC, ``headrace.archive.v1.Archive``: its methods, and their messages.

Lookup answers are assembled field by field, with a single copy.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.access.permissions import ARCHIVE_READ, ARCHIVE_WRITE, DESCRIBE_ARCHIVE
from headrace.archive.lookup.space_reader import Lookup
from headrace.archive.model.columns import (
    DTYPES,
    LARGEST_ROW_BYTES,
    MOST_COLUMNS,
    TEXT,
    Columns,
    described,
    stored_dtype,
)
from headrace.archive.model.records import ROW
from headrace.base.errors import HeadraceError, InvalidRequest, TooLarge
from headrace.base.status_codes import codes
from headrace.base.tensors import Array
from headrace.frontends.calls import (
    SLICE_BYTES,
    GrpcCall,
    GrpcMethod,
    Pieces,
    StreamHandler,
    UnaryHandler,
    answering,
    told,
)
from headrace.frontends.wire import protos
from headrace.frontends.wire.protobuf_cost import AT_ONCE_BYTES, malformed
from headrace.frontends.wire.protobuf_fields import (
    LENGTH_DELIMITED,
    VARINT,
    Field,
    field_number,
    fields,
    length_prefix,
    read_varint,
    varint,
)
from headrace.frontends.wire.request_budget import RequestBudget, check_name
from headrace.frontends.wire.time_slicer import Steps, in_steps
from headrace.telemetry.outcomes import Outcomes

if TYPE_CHECKING:
    from headrace.frontends.archive.service import ArchiveService

_PACKAGE = "headrace.archive.v1"
"""Protobuf package of the messages."""

_LookupRequest = protos.message(f"{_PACKAGE}.LookupRequest")
_LookupResponse = protos.message(f"{_PACKAGE}.LookupResponse")
_Column = protos.message(f"{_PACKAGE}.Column")
_StreamResponse = protos.message(f"{_PACKAGE}.LookupStreamResponse")
_VECTORS, _FOUND, _VERSION, _DTYPE, _DIMENSION, _WRITTEN, _COLUMNS = (
    field_number(_LookupResponse, name)
    for name in ("vectors", "found", "version", "dtype", "dimension", "written", "columns")
)
_RESPONSE = field_number(_StreamResponse, "response")
_STEP_FIELDS = 512
_OTHER_FIELDS = 1000
_STEP_BYTES = 256 * 1024
_LIGHT_BYTES = 1024 * 1024
_LIGHT_KEYS = 16_384
_KEY = field_number(_LookupRequest, "keys") << 3 | LENGTH_DELIMITED
_DTYPES = {"": "<f4", "float32": "<f4", "float16": "<f2"}

SERVICE = f"{_PACKAGE}.Archive"
"""Full name of the service."""


class _Asked:
    """The contents of a message about keys.

    Attributes:
        space: Name of the space.
        keys: The keys.
        version: Version number; 0 for the default.
        written: Whether to return the write times of vectors.
        vectors: Bytes of the vectors or rows of a Put.
        dtype: Their dtype, or ``row``.
        columns: The columns of rows, as messages.
    """

    __slots__ = ("columns", "dtype", "keys", "space", "vectors", "version", "written")

    def __init__(self) -> None:
        """Start empty."""
        self.space, self.dtype, self.version, self.written = "", "", 0, False
        self.keys: list[str] = []
        self.vectors: bytes | memoryview = b""
        self.columns: list[protos.Message] = []


def grpc_methods(service: ArchiveService, outcomes: Outcomes) -> list[GrpcMethod]:
    """Return the methods of the service.

    Args:
        service: The archive's service.
        outcomes: Records the calls that a stream's messages are.
    """
    lookup = _looking_up(service)
    return [
        GrpcMethod(f"/{SERVICE}/Lookup", unary=lookup, verbs=ARCHIVE_READ),
        GrpcMethod(f"/{SERVICE}/LookupStream", stream=_streaming(lookup, outcomes), verbs=ARCHIVE_READ),
        GrpcMethod(f"/{SERVICE}/Put", unary=_changing(service, "Put", _put), verbs=ARCHIVE_WRITE),
        GrpcMethod(
            f"/{SERVICE}/Invalidate",
            unary=_changing(service, "Invalidate", _invalidate),
            verbs=ARCHIVE_WRITE,
            is_administration=True,
        ),
        GrpcMethod(
            f"/{SERVICE}/Forget",
            unary=_changing(service, "Forget", _forget),
            verbs=ARCHIVE_WRITE,
            is_administration=True,
        ),
        GrpcMethod(f"/{SERVICE}/Describe", unary=_describing(service), verbs=DESCRIBE_ARCHIVE),
    ]


def _looking_up(service: ArchiveService) -> UnaryHandler:
    find = service.answering

    async def lookup(message: bytes, call: GrpcCall) -> bytes | Pieces:
        if _is_small(message):
            asked = _lookup_of(message)
            reader = find(asked.space, asked.version)
            found = service.quick(reader, asked.keys, call)
            if found is not None:
                found = await service.finished(reader, found, call, 0.0) if found.waits else found
                return _response(found, with_written=asked.written)
        with RequestBudget.of(service.limits, call) as budget:
            if not _is_small(message):
                asked = await _parsed_large(service, message, budget)
            reader = find(asked.space, asked.version)
            found = await service.lookup(reader, asked.keys, call, 0.0, budget)
            return _response(found, with_written=asked.written)

    return lookup


async def _parsed_large(service: ArchiveService, message: bytes, budget: RequestBudget) -> _Asked:
    if is_light(message):
        await service.slicer.step()
        with suppress(InvalidRequest):  # parsing in steps finds the error again, and names the field
            asked = _lookup_of(message, counted=True)
            budget.hold(len(message))
            return asked
    return await _parsed_in_steps(service, message, _LookupRequest, budget)


async def _parsed_in_steps(
    service: ArchiveService, message: bytes, kind: protos.MessageClass, budget: RequestBudget
) -> _Asked:
    budget.hold(len(message))  # for the texts, which are copied from it
    async with service.slicer as slicer:
        return await in_steps(parsing(message, kind, service.most_keys, service.longest_key), slicer)


def _streaming(lookup: UnaryHandler, outcomes: Outcomes) -> StreamHandler:
    answer = answering(lookup, outcomes, _in_stream, lambda _, error: _error_in_stream(error))

    async def stream(messages: AsyncIterator[bytes], call: GrpcCall) -> AsyncIterator[bytes | Pieces]:
        async for message in messages:
            yield await answer(message, call)

    return stream


Change = Callable[["ArchiveService", _Asked, GrpcCall], Awaitable[None]]
"""Applies the change that a message asks for."""


def _changing(service: ArchiveService, name: str, change: Change) -> UnaryHandler:
    kind, nothing = protos.message(f"{_PACKAGE}.{name}Request"), b""

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        with RequestBudget.of(service.limits, call) as budget:
            asked = parsed(message, kind) if _is_small(message) else None
            await change(service, asked or await _parsed_in_steps(service, message, kind, budget), call)
        return nothing

    return handle


async def _put(service: ArchiveService, asked: _Asked, call: GrpcCall) -> None:
    values = _rows_of(asked) if asked.dtype == ROW else _vectors_of(asked)
    await service.put(asked.space, asked.keys, values, asked.version, call)


async def _invalidate(service: ArchiveService, asked: _Asked, call: GrpcCall) -> None:
    await service.invalidate(asked.space, asked.keys, call)


async def _forget(service: ArchiveService, asked: _Asked, call: GrpcCall) -> None:
    await service.forget(asked.space, asked.keys, call)


def _describing(service: ArchiveService) -> UnaryHandler:
    request_class = protos.message(f"{_PACKAGE}.DescribeRequest")
    response_class = protos.message(f"{_PACKAGE}.DescribeResponse")

    async def handle(message: bytes, call: GrpcCall) -> bytes:
        space = protos.parse(request_class, message).space
        written: bytes = response_class(spaces=service.described(space)).SerializeToString()
        return written

    return handle


# --- messages ---


def _is_small(message: bytes) -> bool:
    """Return whether a message is parsed in one step."""
    return len(message) <= AT_ONCE_BYTES


def is_light(message: bytes) -> bool:
    """Return whether a message has few enough keys to be parsed in one step of a few milliseconds.

    Each key begins with its tag, so the number of such bytes is an upper bound of the number of keys. Walking
    the fields takes twenty times as long.
    """
    if len(message) > _LIGHT_BYTES:
        return False
    return int(np.count_nonzero(np.frombuffer(message, np.uint8) == _KEY)) <= _LIGHT_KEYS


def _lookup_of(message: bytes, *, counted: bool = False) -> _Asked:
    """Parse a _LookupRequest.

    Args:
        message: The bytes.
        counted: Whether the message is known to be light; otherwise it must not be large.

    Raises:
        InvalidRequest: The message is malformed.
    """
    given, asked = protos.parse(_LookupRequest, message, counted=counted), _Asked()
    asked.space, asked.keys, asked.version = given.space, given.keys[:], given.version  # the slice is a list
    asked.written = given.written
    return asked


def parsed(message: bytes, kind: protos.MessageClass) -> _Asked:
    """Parse any other small message.

    Args:
        message: The bytes.
        kind: Its class.

    Raises:
        InvalidRequest: The message is malformed.
    """
    given, asked = protos.parse(kind, message), _Asked()
    asked.space, asked.keys = given.space, list(given.keys)
    if hasattr(given, "vectors"):
        asked.vectors, asked.dtype, asked.version = given.vectors, given.dtype, given.version
        asked.columns = list(given.columns)
    return asked


def parsing(message: bytes, kind: protos.MessageClass, most_keys: int, longest: int) -> Steps[_Asked]:
    """Parse a large message in small steps.

    Args:
        message: The bytes.
        kind: Its class.
        most_keys: Largest number of keys that any space accepts; checked before more are decoded.
        longest: Length of the longest key of any space in bytes; checked likewise.

    Raises:
        InvalidRequest: The message is malformed, or a key is too long.
        TooLarge: It has too many keys, or too many fields altogether.
    """
    asked, done, most_fields = _Asked(), 0, most_keys + MOST_COLUMNS + _OTHER_FIELDS
    names = {field.number: field.name for field in kind.DESCRIPTOR.fields}  # type: ignore[attr-defined]
    for number, field in enumerate(_fields(message)):
        if number == most_fields:
            raise TooLarge(f"expected at most {most_fields} fields in the message, got more", field="message")
        name = names.get(field.number)
        if name == "keys" and field.wire_type == LENGTH_DELIMITED:
            if len(asked.keys) == most_keys:
                raise TooLarge(
                    f"expected at most {most_keys} keys, got more; split the request", field="keys"
                )
            if field.stop - field.start > longest:
                got = f"expected 1 to {longest} bytes of UTF-8, got {field.stop - field.start}"
                raise InvalidRequest(got, field=f"keys[{len(asked.keys)}]")
            asked.keys.append(_text(message, field.start, field.stop, f"keys[{len(asked.keys)}]"))
        elif name == "vectors" and field.wire_type == LENGTH_DELIMITED:
            asked.vectors = memoryview(message)[field.start : field.stop]
        elif name == "columns" and field.wire_type == LENGTH_DELIMITED:
            asked.columns.append(_column(message[field.start : field.stop], len(asked.columns)))
        elif name in ("space", "dtype") and field.wire_type == LENGTH_DELIMITED:
            check_name(field.stop - field.start, name)
            setattr(asked, name, _text(message, field.start, field.stop, name))
        elif name in ("version", "written") and field.wire_type == VARINT:
            setattr(asked, name, read_varint(message, field.start)[0])
        if number % _STEP_FIELDS == _STEP_FIELDS - 1 or field.stop - done > _STEP_BYTES:
            done = field.stop
            yield
    return asked


def _fields(message: bytes) -> Iterator[Field]:
    try:
        yield from fields(message)
    except ValueError as error:
        raise malformed(message, 0) from error


def _text(message: bytes, start: int, stop: int, field: str) -> str:
    try:
        return message[start:stop].decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"expected UTF-8, got {error.reason}", field=field) from error


def _vectors_of(asked: _Asked) -> Array:
    """Return the vectors of a Put, float32 or float16 ``[N, dimension]``.

    Raises:
        InvalidRequest: Their size does not fit the keys, or the dtype is not supported.
    """
    if asked.dtype not in _DTYPES:
        got = f"expected float32 or float16, or row for a table, got {asked.dtype!r:.40}"
        raise InvalidRequest(got, field="dtype")
    numbers, keys = np.dtype(_DTYPES[asked.dtype]), len(asked.keys)
    size = len(asked.vectors)
    if not keys or size % (keys * numbers.itemsize):
        expected = f"{keys} vectors of {numbers.name}, one per key, all of one length"
        raise InvalidRequest(f"expected {expected}, got {size} bytes", field="vectors")
    return np.frombuffer(asked.vectors, numbers).reshape(keys, -1)


def _column(message: bytes, place: int) -> protos.Message:
    if place == MOST_COLUMNS:
        raise TooLarge(f"expected at most {MOST_COLUMNS} columns, got more", field="columns")
    return protos.parse(_Column, message)


def _rows_of(asked: _Asked) -> dict[str, Array]:
    """Return the values of a Put of rows, by column, each ``[N]``: numbers, and texts as NumPy's ``S``.

    Raises:
        InvalidRequest: The columns are invalid, or the size of the rows does not fit them.
    """
    sizes = {one.name: one.size_bytes for one in asked.columns}
    if not 0 < len(sizes) == len(asked.columns) <= MOST_COLUMNS:
        got = f"got {len(asked.columns)} with {len(sizes)} names"
        raise InvalidRequest(f"expected 1 to {MOST_COLUMNS} columns, each once, {got}", field="columns")
    given = {}
    for one in asked.columns:
        room = one.size_bytes if one.dtype == TEXT else 1
        if not one.name or one.dtype not in DTYPES or not 0 < room <= LARGEST_ROW_BYTES:
            expected = f"a name, one of {', '.join(DTYPES)}, and the size of texts"
            raise InvalidRequest(
                f"expected {expected}, got {one.dtype!r:.40}", field=f"columns.{one.name[:100]}"
            )
        given[one.name] = stored_dtype(one.dtype, room)
    row, keys, size = np.dtype(list(given.items())), len(asked.keys), len(asked.vectors)
    for name, dtype in given.items():
        if sizes[name] not in (0, dtype.itemsize):
            expected = f"size_bytes of {dtype.itemsize}"
            raise InvalidRequest(f"expected {expected}, got {sizes[name]}", field=f"columns.{name[:100]}")
    if not keys or size != keys * row.itemsize:
        expected = f"{keys} rows of {row.itemsize} bytes, one per key"
        raise InvalidRequest(f"expected {expected}, got {size} bytes", field="vectors")
    rows = np.frombuffer(asked.vectors, row)
    return {name: rows[name] for name in given}


def _response(lookup: Lookup, *, with_written: bool) -> bytes | Pieces:
    """Serialize a LookupResponse; a large one as Pieces, as joining it would delay other requests.

    Args:
        lookup: The result of the lookup.
        with_written: Whether to include the write time of each vector.
    """
    pieces = _pieces(lookup, with_written)
    return b"".join(pieces) if lookup.vectors.nbytes <= SLICE_BYTES else Pieces(pieces)


def _pieces(lookup: Lookup, with_written: bool) -> list[Any]:
    vectors, written = lookup.vectors, lookup.written
    if sys.byteorder == "big":
        vectors, written = vectors.astype(vectors.dtype.newbyteorder("<")), written.astype("<u8")
    heads = _heads(vectors.shape, vectors.dtype, lookup.version, lookup.columns)
    pieces: list[Any] = [heads[0], vectors, heads[1], lookup.found, heads[2]]
    if with_written:
        pieces += [length_prefix(_WRITTEN, written.nbytes), written]
    if lookup.columns:
        pieces.append(_columns(lookup.columns))
    return pieces


@functools.lru_cache(maxsize=1024)
def _heads(
    shape: tuple[int, int], dtype: np.dtype[np.generic], version: int, columns: Columns
) -> tuple[bytes, bytes, bytes]:
    """Return the bytes before the vectors, before the flags that say which were found, and after those."""
    rows, numbers = shape
    name = (ROW if columns else dtype.name).encode()
    return (
        length_prefix(_VECTORS, rows * numbers * dtype.itemsize),
        length_prefix(_FOUND, rows),
        varint(_VERSION << 3)
        + varint(version)
        + length_prefix(_DTYPE, len(name))
        + name
        + varint(_DIMENSION << 3)
        + varint(numbers),
    )


@functools.lru_cache(maxsize=1024)
def _columns(columns: Columns) -> bytes:
    """Return the columns of a table as fields of a LookupResponse."""
    written = [_Column(**one).SerializeToString() for one in described(columns)]
    return b"".join(length_prefix(_COLUMNS, len(one)) + one for one in written)


def _in_stream(written: bytes | Pieces) -> bytes | Pieces:
    """Wrap a LookupResponse as an answer in a stream."""
    head = length_prefix(_RESPONSE, len(written))
    return head + written if isinstance(written, bytes) else Pieces([head, *written.parts])


def _error_in_stream(error: HeadraceError) -> bytes:
    """Return a stream's answer to a message that failed; the stream continues."""
    message = _StreamResponse(error={"code": codes(error).grpc, "message": told(error)})
    serialized: bytes = message.SerializeToString()
    return serialized
