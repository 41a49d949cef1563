"""Reading a stream's rows as they came, for what makes other rows of them; learning reads Blocks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.stream.parser import StreamParser
from headrace.stream.schema import Schema
from headrace.stream.sources import Readable, read_schema, source_of

_ROWS = 8192


class StreamRows:
    """The rows of a stream as they came, column by column: what makes other rows of them reads so.

    Attributes:
        columns: Their Arrow schema.
        schema: What they are.
    """

    def __init__(self, file: Readable, schema: Schema | None) -> None:
        """Read as far as the schema.

        Args:
            file: The stream.
            schema: What the columns are; what the stream says if None.

        Raises:
            StreamError: It is no stream, or says nothing of its columns.
        """
        self._parser, self._source = StreamParser(schema), source_of(file)
        self.columns = read_schema(self._source, self._parser)
        self.schema = self._parser.schema or Schema(fields=())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Give them, a few thousand at once.

        Raises:
            StreamError: The stream is cut or corrupt; all rows before were given.
        """
        while count := self._source.read(self._parser.room(), None):
            if (batch := self._parser.filled(count)) is not None:
                for start in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(start, _ROWS)
        self._parser.finish()

    def close(self) -> None:
        """Stop reading; the file stays open."""
        self._source.close()
