"""Streams made by hand, for tests."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.stream.schema import METADATA_KEY, Field, Schema


def schema_of(**fields: dict[str, Any]) -> Schema:
    """A schema; each field's role is ``categorical`` unless it says another."""
    return Schema(
        fields=tuple(Field(name=name, **{"role": "categorical", **one}) for name, one in fields.items())
    )


def batch_of(**columns: Any) -> pa.RecordBatch:
    """A record batch of arrays or lists."""
    return pa.record_batch(
        {name: one if isinstance(one, pa.Array) else pa.array(one) for name, one in columns.items()}
    )


def stream_of(batch: pa.RecordBatch, schema: Schema | None = None, rows: int = 1000, **options: Any) -> bytes:
    """A batch as a stream of batches of some rows; the schema in its metadata unless it is None."""
    metadata: Mapping[bytes, bytes] = {} if schema is None else {METADATA_KEY: schema.encode()}
    out, columns = io.BytesIO(), batch.schema.with_metadata(metadata)
    with pa.ipc.new_stream(out, columns, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for start in range(0, batch.num_rows, rows):
            writer.write_batch(pa.record_batch(batch.slice(start, rows).columns, schema=columns))
    return out.getvalue()


CLICKS = schema_of(
    clicked={"role": "label"},
    site={"text": True, "buckets": 1000},
    user={"buckets": 500},
    tags={"text": True, "values": 3, "buckets": 100},
    age={"role": "dense"},
)


def clicks(rows: int) -> pa.RecordBatch:
    """Rows for ``CLICKS``: the same for the same number."""
    random = np.random.default_rng(rows)
    names = [None, "", "a", "bb", "ccc", "a longer name, of more than thirty-two bytes"]
    return batch_of(
        clicked=random.integers(0, 2, rows).astype(np.int8),
        site=pa.array([names[at] for at in random.integers(0, len(names), rows)]).dictionary_encode(),
        user=random.integers(0, 10_000, rows),
        tags=[[names[at] for at in random.integers(0, 6, count)] for count in random.integers(0, 5, rows)],
        age=random.normal(size=rows).astype(np.float32),
    )
