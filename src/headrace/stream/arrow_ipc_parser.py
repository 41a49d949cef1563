"""A parser of the Arrow IPC streaming format that does no I/O: bytes in, record batches out.

It frames the messages itself. So it always knows how many bytes it needs next, limits the allocation for a
corrupt length, and can report where a stream is cut off. Arrow reads the content of messages, which is fully
validated before any other code uses it. Streams may follow one another (``cat monday tuesday``) if their
columns are the same.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple

import msgspec
import pyarrow as pa

from headrace.base.errors import ConfigError, StreamError
from headrace.stream.arrow_ipc_metadata import DICTIONARY, ROWS, SCHEMA, Messages, content, header
from headrace.stream.record_batches import Validator
from headrace.stream.schema import METADATA_KEY, Schema, parse_schema

MOST_BYTES = 2**30
"""Default size limit of a message."""

MOST_ROWS = 2**24
"""Maximum number of rows in one record batch."""

MOST_EXPANSION = 256
"""Maximum expansion of a stream by decompression and by extended dictionaries. LZ4 cannot exceed it, and
meaningful rows with Zstandard hardly reach a tenth of it."""

FREE_EXPANSION_BYTES = 2**26
"""Bytes of expansion allowed in addition to ``MOST_EXPANSION``, so that a small stream of very similar rows
is accepted."""

_PREFIX_BYTES = 8
_CONTINUES = 0xFFFFFFFF
_ENCODE = "convert it with `headrace stream encode`"
_FOREIGN = (
    (b"ARROW1", "an Arrow file; " + _ENCODE + ", or write the streaming format"),
    (b"PAR1", "a Parquet file; " + _ENCODE),
    (b"\x1f\x8b", "gzip; unpack it first (`gunzip -c`)"),
    (b"\x28\xb5\x2f\xfd", "zstd; unpack it first (`zstd -dc`)"),
)


class Position(NamedTuple):
    """A position in a stream.

    Attributes:
        bytes: Number of bytes taken.
        rows: Number of rows in the record batches returned.
    """

    bytes: int
    rows: int


class StreamParser:
    """Turns a stream's bytes into validated record batches.

    Pass bytes to ``feed``; or, to avoid a copy, write them to ``room()`` and pass their number to ``filled``.

    Attributes:
        schema: The Schema of the columns, as given or from the stream; None until it is known.
        arrow_schema: The Arrow schema of the columns; None until it is known.
    """

    def __init__(self, schema: Schema | None = None, *, most_bytes: int = MOST_BYTES) -> None:
        """Begin before the stream's first byte.

        Args:
            schema: The Schema of the columns; None for the stream's own.
            most_bytes: Size limit of a message.
        """
        self.schema = schema
        self.arrow_schema: pa.Schema | None = None
        self._most_bytes = most_bytes
        self._given = schema is not None
        self._messages = Messages()
        self._reader: pa.RecordBatchReader | None = None
        self._validator: Validator | None = None
        self._metadata = memoryview(b"")
        self._opened_bytes = 0
        self._dictionaries: dict[int, int] = {}
        self._new_dictionaries: set[int] = set()
        self._bytes = self._rows = 0
        self._body_bytes = 0
        self._await(_PREFIX_BYTES, "prefix")

    @property
    def position(self) -> Position:
        """The current position."""
        return Position(self._bytes, self._rows)

    def room(self) -> memoryview:
        """Return the buffer for the next bytes: the rest of the awaited message part, at least one byte."""
        return self._room[self._have :]

    def feed(self, data: bytes | memoryview) -> list[pa.RecordBatch]:
        """Take some bytes, in pieces of any size.

        Returns:
            The record batches that these bytes complete.

        Raises:
            StreamError: The data is corrupt or not a stream. Batches completed in this call are lost; use
                ``filled`` to keep them.
        """
        rest, found = memoryview(data).cast("B"), []
        while len(rest):
            room = self.room()
            taken = min(len(room), len(rest))
            room[:taken] = rest[:taken]
            if (batch := self.filled(taken)) is not None:
                found.append(batch)
            rest = rest[taken:]
        return found

    def filled(self, count: int) -> pa.RecordBatch | None:
        """Parse bytes that were written to the start of ``room()``.

        Args:
            count: Number of bytes.

        Returns:
            The record batch that they complete; None if they complete none.

        Raises:
            StreamError: The data is corrupt or not a stream.
        """
        self._bytes += count
        self._have += count
        if self._have < len(self._room):
            return None
        if self._part == "prefix":
            self._take_prefix()
            return None
        if self._part == "metadata":
            self._take_metadata()
            return self._take_message() if not self._body_bytes else None
        return self._take_message()

    def finish(self) -> None:
        """Finish: no more bytes follow.

        Raises:
            StreamError: The bytes end within a message, or before the first one.
        """
        if self._part == "prefix" and not self._have:
            if self.arrow_schema is None:
                raise self._error("it is empty; expected an Arrow IPC stream, such as a schema without rows")
            return
        if self.arrow_schema is None and self._part == "prefix":
            self._refuse_foreign()
        missing = len(self._room) - self._have + (self._body_bytes if self._part == "metadata" else 0)
        raise self._error(
            f"it is cut within a message, of which {missing} bytes or more are missing; "
            "did the program that writes it end early?"
        )

    def next_stream(self) -> None:
        """End the current stream, with or without its end marker; another one may follow.

        Raises:
            StreamError: It ends within a message, or before the first one.
        """
        self.finish()
        self._forget()  # but keep ``room()``: the caller may hold it already

    def _forget(self) -> None:
        self._reader = None
        self._messages = Messages()
        self._dictionaries.clear()
        self._new_dictionaries.clear()

    def _error(self, message: str) -> StreamError:
        return StreamError(f"{message} (byte {self._bytes})", row=self._rows)

    def _await(self, count: int, part: str) -> None:
        self._buffer = pa.allocate_buffer(count)
        self._room = memoryview(self._buffer).cast("B")
        self._have = 0
        self._part = part

    def _refuse_foreign(self) -> None:
        start = bytes(self._room[: self._have])
        for magic, what in _FOREIGN:
            if start.startswith(magic):
                raise self._error(f"expected an Arrow IPC stream, got {what}")
        if start and all(9 <= byte < 127 for byte in start):
            raise self._error(f"expected an Arrow IPC stream, got text ({start!r} …); {_ENCODE}")

    def _take_prefix(self) -> None:
        continues, length = struct.unpack("<Ii", self._room)
        if continues != _CONTINUES:
            if self.arrow_schema is None:
                self._refuse_foreign()
            raise self._error(
                "expected a message of an Arrow IPC stream (ff ff ff ff), "
                f"got {bytes(self._room[:4]).hex(' ')}"
            )
        if length == 0:  # The end marker; another stream may follow.
            self._forget()
            self._await(_PREFIX_BYTES, "prefix")
            return
        self._check_length(length)
        prefix = self._buffer
        self._await(length, "metadata")
        self._messages.add(prefix)

    def _check_length(self, length: int) -> None:
        if not 0 < length <= self._most_bytes:
            raise self._error(
                f"a message states a length of {length} bytes; expected at most {self._most_bytes}; "
                "if it is not corrupt, write smaller record batches"
            )

    def _take_metadata(self) -> None:
        try:
            self._kind, self._body_bytes = header(self._room)
        except (struct.error, IndexError) as error:
            raise self._error("a message's metadata is corrupt") from error
        if self._body_bytes:
            self._check_length(self._body_bytes)
        self._messages.add(self._buffer)
        self._metadata = self._room
        if self._body_bytes:
            self._await(self._body_bytes, "body")

    def _take_message(self) -> pa.RecordBatch | None:
        kind = self._kind
        if kind in (ROWS, DICTIONARY):
            self._open_body(self._room if self._part == "body" else memoryview(b""))
        if self._part == "body":
            self._messages.add(self._buffer)
        self._await(_PREFIX_BYTES, "prefix")
        if (self._reader is None) != (kind == SCHEMA):
            raise self._error("expected a schema at the start of the stream, and only there")
        try:
            if kind == SCHEMA:
                self._open()
            elif kind == ROWS:
                return self._read()
            elif kind != DICTIONARY:
                raise self._error(f"expected rows or a dictionary, got a message of kind {kind}")
        except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
            raise self._error(f"a message is corrupt: {_first_line(error)}") from error
        return None

    def _open_body(self, body: memoryview) -> None:
        """Check the expanded size of a message before Arrow reads it."""
        try:
            found = content(self._metadata, body)
        except (struct.error, IndexError) as error:
            raise self._error("a message's metadata is corrupt") from error
        opened = found.opened_bytes
        if found.dictionary >= 0 or self._kind == DICTIONARY:
            known = self._dictionaries.get(found.dictionary, 0) if found.delta else 0
            self._dictionaries[found.dictionary] = known + opened
            self._new_dictionaries.add(found.dictionary)
        else:
            # With these rows, new and extended dictionaries are concatenated and validated; if some are
            # nested, all dictionaries are validated with each batch.
            again = (
                self._dictionaries if self._validator and self._validator.again else self._new_dictionaries
            )
            opened += sum(self._dictionaries[number] for number in again)
        self._opened_bytes += opened
        most = MOST_EXPANSION * self._bytes + FREE_EXPANSION_BYTES
        if opened > self._most_bytes or self._opened_bytes > most:
            raise self._error(
                f"a message would expand to {opened} bytes; expected at most {self._most_bytes}, and for the "
                f"stream {MOST_EXPANSION} times the bytes received plus {FREE_EXPANSION_BYTES}; if it is not "
                "corrupt, compress it less, write smaller batches, or do not extend a large dictionary for "
                "small batches"
            )

    def _open(self) -> None:
        self._reader = pa.ipc.open_stream(pa.PythonFile(self._messages, mode="r"))
        columns = self._reader.schema
        self._validator = Validator(columns)
        _ = columns.names  # Names that are not UTF-8 raise here, where the error is reported as corruption.
        if self.arrow_schema is not None:
            if not columns.equals(self.arrow_schema):
                raise self._error("a second stream follows, with other columns; give each its own run")
            if _joined_with(columns) != _joined_with(self.arrow_schema):
                raise self._error(
                    "a second stream follows, joined with other versions of spaces; give each its own run"
                )
            return
        if self.schema is None or not self._given:
            self.schema = self._said(columns)
        elif (spaces := _joined_with(columns)) is not msgspec.UNSET:  # a given schema does not contain them
            self.schema = msgspec.structs.replace(self.schema, spaces=spaces)
        self.arrow_schema = columns

    def _said(self, columns: pa.Schema) -> Schema:
        """Return the Schema in a stream's metadata."""
        said = (columns.metadata or {}).get(METADATA_KEY)
        if said is None:
            raise self._error(
                f"it does not describe its {len(columns)} columns: give a schema "
                "(`--schema FILE.toml`), or put its JSON into the metadata of the Arrow schema, "
                f"as {METADATA_KEY.decode()!r}"
            )
        try:
            return parse_schema(said, "the schema in its metadata")
        except ConfigError as error:
            raise self._error(error.message) from error

    def _read(self) -> pa.RecordBatch:
        if self._reader is None or self._validator is None:
            raise self._error("expected a schema first")
        try:
            batch = self._reader.read_next_batch()
        except StopIteration:
            raise self._error("rows came before the dictionaries that they refer to") from None
        if batch.num_rows > MOST_ROWS:
            raise self._error(f"a record batch has {batch.num_rows} rows; expected at most {MOST_ROWS}")
        self._validator.validate(batch, new_dictionaries=bool(self._new_dictionaries))
        self._new_dictionaries.clear()
        self._rows += batch.num_rows
        return batch


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _joined_with(columns: pa.Schema) -> dict[str, int] | msgspec.UnsetType:
    """Return the space versions that a stream's rows were joined with, from its metadata."""
    said = (columns.metadata or {}).get(METADATA_KEY)
    if said is None or b'"spaces"' not in said:
        return msgspec.UNSET
    with suppress(ConfigError):
        return parse_schema(said).spaces
    return msgspec.UNSET
