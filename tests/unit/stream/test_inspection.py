"""Inspection counts what the learner would read, and says what the learner would say."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pyarrow as pa
import pytest

from headrace.cli.stream import inspection_json, inspection_text
from headrace.stream.click_generator import GeneratorSettings, arrow_schema, generate_batches, schema_of
from headrace.stream.inspection import Inspection, inspect
from headrace.stream.schema import METADATA_KEY, Field, Schema
from headrace.stream.stream_io import write_stream

SETTINGS = GeneratorSettings(rows=20_000, seed=1, shape="small", batch_rows=3000)


def stream(schema: Schema, *batches: pa.RecordBatch) -> bytes:
    arrow = batches[0].schema.with_metadata({METADATA_KEY: schema.encode()})
    written = io.BytesIO()
    write_stream(written, arrow, [pa.record_batch(one.columns, arrow) for one in batches], lambda rows: None)
    return written.getvalue()


def look(content: bytes, schema: Schema | None = None) -> Inspection:
    return inspect(io.BytesIO(content), schema, lambda rows: None)


@pytest.fixture(scope="module")
def generated() -> bytes:
    written = io.BytesIO()
    write_stream(written, arrow_schema(SETTINGS), generate_batches(SETTINGS), lambda rows: None)
    return written.getvalue()


def test_totals_and_the_optimal_logloss_are_those_of_the_rows(generated: bytes) -> None:
    found = look(generated)
    table = pa.ipc.open_stream(generated).read_all()
    truth, labels = table["truth"].to_numpy().astype(float), table["label"].to_numpy()
    assert (found.rows, found.bytes, found.batches) == (20_000, len(generated), 7)
    assert found.problem is None
    assert found.click_rate == labels.mean()
    assert found.optimal_logloss == pytest.approx(
        -np.mean(truth * np.log(truth) + (1 - truth) * np.log(1 - truth))
    )
    assert found.realised_logloss == pytest.approx(-np.log(np.where(labels, truth, 1 - truth)).mean())
    assert found.base_logloss is not None
    assert found.optimal_logloss < found.base_logloss
    assert found.last_time == found.first_time + 19_999_000
    fields = {report.field.name: report for report in found.fields}
    assert fields["c1"].distinct == len(np.unique(table["c1"].to_numpy()))
    numbers = table["d2"].to_numpy()
    assert (fields["d2"].minimum, fields["d2"].maximum) == (numbers.min(), numbers.max())
    assert fields["d2"].mean == pytest.approx(numbers.mean(dtype=float))


@pytest.mark.parametrize("keys", ["hash", "exact"])
def test_distinct_values_are_estimated_through_collisions(keys: str) -> None:
    schema = Schema(
        fields=(
            Field(name="label", role="label"),
            Field(name="c", role="categorical", keys=keys, buckets=4096),
            Field(name="m", role="categorical", keys=keys, values=3),
        )
    )
    values = np.arange(20_000) % 3000
    lists = pa.array([[int(value), 5000] for value in values % 100])
    found = look(stream(schema, pa.record_batch({"label": np.zeros(20_000), "c": values, "m": lists})))
    assert found.fields[1].distinct == pytest.approx(3000, rel=0.05)
    assert found.fields[2].distinct == pytest.approx(101, rel=0.02)
    assert inspection_text(found).count(" about ") == 2


def test_missing_values_are_counted_and_not_learnt_as_values() -> None:
    schema = Schema(
        fields=(
            Field(name="label", role="label"),
            Field(name="c", role="categorical", text=True),
            Field(name="d", role="dense"),
        )
    )
    found = look(
        stream(schema, pa.record_batch({"label": [0, 1], "c": ["a", None], "d": pa.array([None, 4.0])}))
    )
    label, category, dense = found.fields
    assert (label.missing, category.missing, dense.missing) == (0, 1, 1)
    assert (category.distinct, category.first_values) == (1, ["a", "-"])
    assert (dense.minimum, dense.mean, dense.maximum) == (0.0, 2.0, 4.0)


@pytest.mark.parametrize("keys", ["hash", "exact"])
def test_values_that_the_learner_treats_as_missing_count_as_missing(keys: str) -> None:
    schema = Schema(
        fields=(
            Field(name="label", role="label"),
            Field(name="t", role="categorical", text=True, keys=keys),
            Field(name="i", role="categorical", keys=keys),
            Field(name="m", role="categorical", keys=keys, values=2),
            Field(name="b", role="categorical", keys="bucket"),
            Field(name="v", role="vector", size=2),
        )
    )
    found = look(
        stream(
            schema,
            pa.record_batch(
                {
                    "label": [0, 1, 0, 1],
                    "t": ["a", "", None, ""],
                    "i": [-1, 1, None, 2],
                    "m": pa.array([[], None, [-1, 5], [-1, None]], pa.list_(pa.int64())),
                    "b": [0, 1, None, 2],
                    "v": pa.array([[0, 0], [0, 1], None, [1, 0]], pa.list_(pa.float32(), 2)),
                }
            ),
        )
    )
    missing = {one.field.name: one.missing for one in found.fields}
    assert missing == {"label": 0, "t": 3, "i": 2, "m": 3, "b": 2, "v": 2}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ((Field(name="label", role="label"),), "no field is categorical"),
        ((Field(name="c", role="categorical", buckets=2**27),), "expected at most 67108864"),
    ],
)
def test_a_stream_s_own_schema_that_the_trainer_refuses_is_a_problem(
    fields: tuple[Field, ...], said: str
) -> None:
    found = look(stream(Schema(fields=fields), pa.record_batch({"label": [1.0], "c": [1]})))
    assert found.problem is not None
    assert said in found.problem.message


def test_rows_before_an_error_are_counted_and_the_error_is_kept() -> None:
    schema = Schema(fields=(Field(name="label", role="label"), Field(name="d", role="dense")))
    good = pa.record_batch({"label": [0.0, 1.0], "d": [1.0, 2.0]})
    bad = pa.record_batch({"label": [0.0, math.nan], "d": [1.0, 2.0]})
    found = look(stream(schema, good, bad, good))
    assert (found.rows, found.batches) == (2, 1)
    assert found.problem is not None
    assert (found.problem.row, found.problem.field) == (3, "label")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_cut_stream_is_a_problem(generated: bytes, share: float) -> None:
    found = look(generated[: int(len(generated) * share)])
    assert found.problem is not None
    assert "cut" in found.problem.message
    assert found.rows == found.batches * 3000


def test_text_and_json_say_the_same(generated: bytes) -> None:
    found = look(generated)
    text, said = inspection_text(found), json.loads(inspection_json(found))
    assert said["rows"] == 20_000
    assert said["schema"]["generator"]["seed"] == 1.0
    assert [field["name"] for field in said["fields"]] == [field.name for field in schema_of(SETTINGS).fields]
    assert f"{said['optimal_logloss']:.5f}" in text
    assert "20,000 rows in 7 batches" in text
    assert said["size_bytes"] == len(generated)
    assert "about" not in text  # rows of tables are counted, not estimated
    assert "2026-01-01T00:00:19.999000Z" in text


def test_nothing_is_shown_of_what_is_no_stream() -> None:
    found = look(b"label,a\n1,2\n")
    assert found.problem is not None
    assert "encode" in found.problem.message
    assert inspection_text(found).count("\n") == 0
    assert json.loads(inspection_json(found))["schema"] is None
