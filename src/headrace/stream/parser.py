"""A parser of the Arrow IPC streaming format that does no I/O: bytes in, record batches out.

It frames the messages itself, so that it always knows how many bytes it wants next, never allocates what a
corrupt length says without a bound, and can say where a stream is cut. What is in a message is read by Arrow
and validated fully before anybody else sees it. Streams may follow one another (``cat monday tuesday``), as
long as their columns are the same.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import NamedTuple

import msgspec
import pyarrow as pa

from headrace.errors import ConfigError, StreamError
from headrace.stream.messages import DICTIONARY, ROWS, SCHEMA, Messages, content, header
from headrace.stream.schema import METADATA_KEY, Schema, parse_schema
from headrace.stream.validating import Validator

MOST_BYTES = 2**30
"""The largest message that is taken unless said otherwise."""

MOST_ROWS = 2**24
"""The most rows of one record batch."""

MOST_EXPANSION = 256
"""How many bytes a byte that arrives may become, by decompression and by dictionaries that are extended: no
stream compressed with LZ4 has more, and rows that say something hardly a tenth with Zstandard."""

FREE_EXPANSION_BYTES = 2**26
"""How many bytes a stream may become besides that, so that a small one of much the same rows is taken."""

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
    """How far into a stream something is.

    Attributes:
        bytes: Bytes that were taken.
        rows: Rows of the record batches that were given.
    """

    bytes: int
    rows: int


class StreamParser:
    """Turns a stream's bytes into validated record batches.

    Give it bytes with ``feed``; or, without a copy, fill ``room()`` and say with ``filled`` how much.

    Attributes:
        schema: What the columns are to the learner: as given, or as the stream says; None until it is known.
        arrow_schema: The columns' Arrow types; None until they are known.
    """

    def __init__(self, schema: Schema | None = None, *, most_bytes: int = MOST_BYTES) -> None:
        """Begin before the stream's first byte.

        Args:
            schema: What the columns are; what the stream itself says if None.
            most_bytes: The largest message that is taken.
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
        """How far it has come."""
        return Position(self._bytes, self._rows)

    def room(self) -> memoryview:
        """Where the next bytes go: at least one, and never more than belong to what is awaited."""
        return self._room[self._have :]

    def feed(self, data: bytes | memoryview) -> list[pa.RecordBatch]:
        """Take some bytes, in pieces of any size.

        Returns:
            The record batches that these bytes complete.

        Raises:
            StreamError: The stream is corrupt, or is no stream; batches completed before are lost with it, so
                whoever must not lose them calls ``filled``.
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
        """Go on after bytes were written to the start of ``room()``.

        Args:
            count: How many.

        Returns:
            The record batch that they complete, if they do.

        Raises:
            StreamError: The stream is corrupt, or is no stream.
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
        """Say that no more bytes come.

        Raises:
            StreamError: They end within a message, or before the first one.
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
            "did what writes it end early?"
        )

    def next_stream(self) -> None:
        """Say that a stream is over, whether it says so itself or not; another one may follow.

        Raises:
            StreamError: It ends within a message, or before the first one.
        """
        self.finish()
        self._forget()  # and ``room()`` stays what it was: whoever fills it may have asked already

    def _forget(self) -> None:
        self._reader = None
        self._messages = Messages()
        self._dictionaries.clear()

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
        if length == 0:  # The end of a stream; another one may follow.
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
                f"a message says that it has {length} bytes, at most {self._most_bytes} are taken; "
                "it is corrupt, or write smaller record batches"
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
        """Count what reading a message will cost, before it is paid."""
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
            # Arrow joins each dictionary that was extended anew, and it is validated anew.
            again = (
                self._dictionaries if self._validator and self._validator.again else self._new_dictionaries
            )
            opened += sum(self._dictionaries[number] for number in again)
        self._opened_bytes += opened
        most = MOST_EXPANSION * self._bytes + FREE_EXPANSION_BYTES
        if opened > self._most_bytes or self._opened_bytes > most:
            raise self._error(
                f"a message would open to {opened} bytes; at most {self._most_bytes} are taken of one, and "
                f"of a stream {MOST_EXPANSION} times the bytes that came and {FREE_EXPANSION_BYTES} more; it "
                "is corrupt, or compress it less, write smaller batches, or extend no large dictionary for "
                "small batches"
            )

    def _open(self) -> None:
        self._reader = pa.ipc.open_stream(pa.PythonFile(self._messages, mode="r"))
        columns = self._reader.schema
        self._validator = Validator(columns)
        _ = columns.names  # Names that are no text fail here, where that is told as what it is.
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
        elif (spaces := _joined_with(columns)) is not msgspec.UNSET:  # of which a given schema knows nothing
            self.schema = msgspec.structs.replace(self.schema, spaces=spaces)
        self.arrow_schema = columns

    def _said(self, columns: pa.Schema) -> Schema:
        """The schema in a stream's metadata."""
        said = (columns.metadata or {}).get(METADATA_KEY)
        if said is None:
            raise self._error(
                f"it does not say what its {len(columns)} columns are for: give a schema "
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
            raise self._error(f"a record batch has {batch.num_rows} rows, at most {MOST_ROWS} are taken")
        self._validator.validate(batch, new_dictionaries=bool(self._new_dictionaries))
        self._new_dictionaries.clear()
        self._rows += batch.num_rows
        return batch


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _joined_with(columns: pa.Schema) -> dict[str, int] | msgspec.UnsetType:
    """The versions of spaces that a stream says its rows were joined with."""
    said = (columns.metadata or {}).get(METADATA_KEY)
    if said is None or b'"spaces"' not in said:
        return msgspec.UNSET
    with suppress(ConfigError):
        return parse_schema(said).spaces
    return msgspec.UNSET
