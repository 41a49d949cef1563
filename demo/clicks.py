"""The stream: pages with their verdicts, as record batches of Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from demo.features import SCHEMA, Page, Value
from headrace.stream.schema import METADATA_KEY, Field


def column_type(field: Field) -> pa.DataType:
    """Say how a field travels."""
    if field.role == "label":
        return pa.bool_()
    if field.role == "dense":
        return pa.float32()
    value = pa.string() if field.text else pa.int64()
    return pa.list_(value) if field.values > 1 else value


ARROW_SCHEMA = pa.schema(
    [(field.name, column_type(field)) for field in SCHEMA.fields], metadata={METADATA_KEY: SCHEMA.encode()}
)
"""The columns of the stream, which say themselves what they mean."""


def column(field: Field, pages: Sequence[Page]) -> list[Value] | list[bool]:
    """Give a field's values: those of the context once for each film."""
    if field.role == "label":
        return [liked for page in pages for liked in page.liked]
    if field.context:
        return [page.context[field.name] for page in pages for _ in page.liked]
    return [value for page in pages for value in page.candidates[field.name]]


def record_batch(pages: Sequence[Page]) -> pa.RecordBatch:
    """Join pages to one batch of rows."""
    columns = [
        pa.array(column(field, pages), kind.type)
        for field, kind in zip(SCHEMA.fields, ARROW_SCHEMA, strict=True)
    ]
    return pa.record_batch(columns, ARROW_SCHEMA)
