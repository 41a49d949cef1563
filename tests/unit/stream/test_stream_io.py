"""A stream that could not be finished never looks like a whole one."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.base.errors import StreamError
from headrace.stream.arrow_ipc_parser import StreamParser
from headrace.stream.stream_io import write_stream
from tests.streams import CLICKS, clicks

SCHEMA = clicks(1).schema.with_metadata({b"headrace": CLICKS.encode()})
BATCH = pa.record_batch(clicks(300).columns, SCHEMA)


def ending_with(error: BaseException) -> Iterator[pa.RecordBatch]:
    yield BATCH
    raise error


@pytest.mark.parametrize("error", [StreamError("wrong"), pa.ArrowInvalid("wrong"), KeyboardInterrupt()])
def test_whatever_ends_the_rows_early_leaves_the_stream_cut(error: BaseException) -> None:
    written = io.BytesIO()
    with pytest.raises(type(error)):
        write_stream(written, SCHEMA, ending_with(error), lambda rows: None)
    parser = StreamParser()
    assert [batch.num_rows for batch in parser.feed(written.getvalue())] == [300]
    with pytest.raises(StreamError, match="cut within a message"):
        parser.finish()
