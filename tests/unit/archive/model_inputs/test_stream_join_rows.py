"""Rows to be joined, as other tools write them: their keys, times and schemas, and what they were served."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.base.errors import StreamError
from headrace.stream.schema import METADATA_KEY, Field, Schema
from tests.unit.archive.filling_parts import LengthEmbedder
from tests.unit.archive.model_inputs.test_stream_join import (
    SCHEMA,
    SOURCES,
    embed,
    join,
    now_us,
    opened,
    set_ad,
    stream_of,
    tick,
)

IMAGE = {"image": SOURCES["image"]}
CLICKS = {"clicks": SOURCES["clicks"]}


@pytest.fixture
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    with opened(request, tmp_path, "lmdb") as made:
        yield made


def row(**more: Any) -> dict[str, Any]:
    return {"label": 0, "served": now_us(), "url": "a", "ad": 1} | more


def streamed(columns: dict[str, pa.Array]) -> bytes:
    batch = pa.record_batch(columns).replace_schema_metadata({METADATA_KEY: SCHEMA.encode()})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


def test_a_key_that_is_null_is_none_and_not_zero(archive: Archive) -> None:
    set_ad(archive, 0, 5)
    tick()
    joined, table = join(archive, stream_of([row(ad=0), row(ad=None)]), CLICKS)
    assert table.column("clicks").to_pylist() == [5, 0]
    assert (joined.counts["clicks"].keys, joined.counts["clicks"].found) == (1, 1)


def test_keys_may_have_a_dictionary(archive: Archive) -> None:
    embed(archive, "a", 1.0)
    tick()
    urls = pa.array(["a", None, "b", "a"]).dictionary_encode()
    columns = {"label": pa.array([0] * 4), "served": pa.array([now_us()] * 4), "url": urls}
    _, table = join(archive, streamed(columns), IMAGE)
    assert [vector[0] for vector in table.column("image").to_pylist()] == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_may_have_any_unit(archive: Archive, unit: str) -> None:
    embed(archive, "a", 1.0)
    tick()
    times = pa.array([datetime(2020, 1, 1, tzinfo=UTC), datetime.now(UTC)], pa.timestamp("us", "UTC"))
    served = times.cast(pa.timestamp(unit, "UTC"), safe=False)
    columns = {"label": pa.array([0, 0]), "served": served, "url": pa.array(["a", "a"])}
    _, table = join(archive, streamed(columns), IMAGE)
    assert [vector[0] for vector in table.column("image").to_pylist()] == [0.0, 1.0]


def test_rows_of_before_there_was_anything_have_nothing_and_lose_nothing(archive: Archive) -> None:
    embed(archive, "a", 1.0)
    set_ad(archive, 1, 7)
    joined, table = join(archive, stream_of([row(served=now_us() - 30_000_000)]))  # history is a minute
    assert table.column("image").to_pylist() == [[0.0] * 4]
    assert table.column("clicks").to_pylist() == [0]
    assert [(one.missing, one.lost) for one in joined.counts.values()] == [(1, 0)] * 3


def test_a_time_before_1970_is_the_past_and_no_future(archive: Archive) -> None:
    set_ad(archive, 1, 7)
    joined, table = join(archive, stream_of([row(served=-5)]), CLICKS)
    assert table.column("clicks").to_pylist() == [0]
    assert joined.counts["clicks"].found == 0


def test_the_schemas_settings_for_joined_columns_and_earlier_joins_are_kept(archive: Archive) -> None:
    city = Field(name="city", role="categorical", text=True, buckets=64)
    schema = Schema(fields=(*SCHEMA.fields, city), spaces={"titles": 3, "images": 9})
    joined, _ = join(archive, stream_of([row()], schema))
    assert [one for one in joined.schema.fields if one.name == "city"] == [city]
    assert joined.schema.spaces == {"titles": 3, "images": 1, "ads": 1}


def test_rows_that_two_versions_served_are_each_learnt_as_they_say(archive: Archive) -> None:
    """In one batch, and whatever their clocks said; what is not filled yet in the other version is lost."""
    for key in ("a", "b"):
        embed(archive, key, 1.0)
    newer = archive.add_version("images", LengthEmbedder("lengths-2")).number
    embed(archive, "a", 2.0, newer)
    first = {one: int(archive.lookup("images", ["a"], version=one).written[0]) for one in (1, newer)}
    of_b = int(archive.lookup("images", ["b"], version=1).written[0])
    tick()
    embed(archive, "a", 3.0, newer)
    rows = [
        row(served=1, **{"image.written": first[newer], "image.version": newer}),
        row(served=1, **{"image.written": first[1], "image.version": 1}),
        row(served=1, url="b", **{"image.written": of_b, "image.version": 1}),
        row(served=1, **{"image.written": 0, "image.version": 1}),
    ]
    joined, table = join(archive, stream_of(rows), IMAGE, versions={"images": newer})
    assert [vector[0] for vector in table.column("image").to_pylist()] == [2.0, 3.0, 0.0, 0.0]
    counts = joined.counts["image"]
    assert (counts.found, counts.lost, counts.missing, counts.recorded) == (2, 1, 1, 4)


def test_columns_that_a_table_lacked_stay_missing_in_a_newer_version(archive: Archive) -> None:
    newer = archive.table_version("ads", archive.reader("ads").version.columns[:1]).number
    archive.put_rows("ads", ["1"], {"clicks": np.array([7])}, version=newer)
    tick()
    rows = [row(**{"clicks.written": 0, "clicks.version": 1})]
    joined, table = join(archive, stream_of(rows), CLICKS, versions={"ads": newer})
    assert table.column("clicks").to_pylist() == [0]
    assert joined.counts["clicks"].missing == 1


@pytest.mark.parametrize("form", ["{}", "{}.0", float])
def test_served_times_and_versions_may_be_texts_or_floats(archive: Archive, form: Any) -> None:
    """`stream encode --ignore` keeps texts, and pandas writes 17.0 where other rows have none."""
    embed(archive, "a", 1.0)
    first = int(archive.lookup("images", ["a"]).written[0])
    tick()
    embed(archive, "a", 2.0)
    tick()
    said = [form.format(one) if isinstance(form, str) else form(one) for one in (first, 1)]
    recorded = {"image.written": said[0], "image.version": said[1]}
    rows = [row(**recorded), row(**dict.fromkeys(recorded)), row(**recorded)]
    joined, table = join(archive, stream_of(rows), IMAGE)
    assert [vector[0] for vector in table.column("image").to_pylist()] == [1.0, 2.0, 1.0]
    assert joined.counts["image"].recorded == 2


@pytest.mark.parametrize("wrong", ["yesterday", "1.5", 1.5, -1])
def test_a_row_that_says_no_whole_number_is_named(archive: Archive, wrong: Any) -> None:
    embed(archive, "a", 1.0)
    rows = [row(**{"image.written": type(wrong)(1)}) for _ in range(6)] + [row(**{"image.written": wrong})]
    with pytest.raises(StreamError, match=r"row 6, field 'image.written': expected a whole number, .* got "):
        join(archive, stream_of(rows), IMAGE)


def test_served_times_and_versions_are_ignored_in_training(archive: Archive) -> None:
    """Though `stream encode` guesses categories, or numbers, where nobody says anything."""
    embed(archive, "a", 1.0)
    guessed = (Field(name="image.written", role="dense"), Field(name="image.version", role="categorical"))
    schema = Schema(fields=(*SCHEMA.fields, *guessed))
    joined, _ = join(archive, stream_of([row(**{"image.written": 0, "image.version": 1})], schema), IMAGE)
    roles = {one.name: one.role for one in joined.schema.fields}
    assert (roles["image.written"], roles["image.version"]) == ("ignored", "ignored")
    assert joined.arrow_schema.metadata[METADATA_KEY] == joined.schema.encode()
