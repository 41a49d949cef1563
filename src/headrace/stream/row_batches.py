"""Read a stream's rows unchanged, for code that transforms them; learning reads Blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.stream.arrow_ipc_parser import StreamParser
from headrace.stream.byte_sources import Readable, read_schema, source_of
from headrace.stream.schema import Schema

_ROWS = 8192


class StreamRows:
    """The rows of a stream, unchanged, as record batches.

    Attributes:
        columns: Their Arrow schema.
        schema: Their Schema.
    """

    def __init__(self, file: Readable, schema: Schema | None) -> None:
        """Read as far as the schema.

        Args:
            file: The stream.
            schema: The Schema of the columns; None for the stream's own.

        Raises:
            StreamError: It is not a stream, or has no Schema.
        """
        self._parser, self._source = StreamParser(schema), source_of(file)
        self.columns = read_schema(self._source, self._parser)
        self.schema = self._parser.schema or Schema(fields=())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of at most a few thousand rows.

        Raises:
            StreamError: The stream is cut off or corrupt; all rows before were yielded.
        """
        while count := self._source.read(self._parser.room(), None):
            if (batch := self._parser.filled(count)) is not None:
                for start in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(start, _ROWS)
        self._parser.finish()

    def close(self) -> None:
        """Stop reading; the file stays open."""
        self._source.close()
