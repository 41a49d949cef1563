"""Feature tables: rows of columns by key, in an archive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.filling.backfill import Backfill
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.model.catalog import with_default
from headrace.archive.model.columns import Column
from headrace.archive.operations.space_versions import read_whole
from headrace.base.errors import ConfigError, InvalidRequest, NotFound
from tests.unit.archive.filling_parts import open_parts

COLUMNS = {
    "age": "int64",
    "country": {"dtype": "text", "bytes": 8, "default": "??"},
    "score": "float32",
}
GIVEN = {"age": [30, 40], "country": ["CH", "AT"], "score": [0.25, 0.5]}


def tables(folder: Path, kind: str = "memory", **settings: object) -> Archive:
    one = {"columns": COLUMNS, **settings}
    return open_parts(folder, kind, {"dimension": 4}, tables={"users": one, "films": {}})


@pytest.fixture(params=["memory", "lmdb"])
def archive(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Archive]:
    with tables(tmp_path, request.param) as opened:
        yield opened


def listed(values: dict[str, np.ndarray]) -> dict[str, list[object]]:
    return {name: one.tolist() for name, one in values.items()}


def test_rows_are_found_also_without_the_cache_and_a_missing_one_is_its_defaults(archive: Archive) -> None:
    archive.put_rows("users", ["a", "b" * 5000], GIVEN)
    for _ in range(2):
        lookup = archive.lookup("users", ["b" * 5000, "none", "a"])
        assert listed(lookup.values()) == {
            "age": [40, 0, 30],
            "country": [b"AT", b"??", b"CH"],
            "score": [0.5, 0.0, 0.25],
        }
        assert lookup.found.tolist() == [True, False, True]
        assert lookup.vectors.dtype == np.uint8
        assert lookup.version == 1
        archive.reader("users").forget_all()


def test_rows_are_replaced_forgotten_and_written_when_it_is_said(archive: Archive) -> None:
    archive.put_rows("users", ["a", "b"], GIVEN, written=np.array([1000, 2000], np.uint64))
    assert archive.lookup("users", ["a", "b"]).written.tolist() == [1000, 2000]
    archive.put_rows("users", ["a"], {"age": [31], "score": [1.0]})
    lookup = archive.lookup("users", ["a", "b"])
    assert listed(lookup.values())["age"] == [31, 40]
    assert listed(lookup.values())["country"] == [b"??", b"AT"]
    assert lookup.written[0] > 1_700_000_000_000
    archive.forget("users", ["a"])
    assert archive.lookup("users", ["a", "b"]).found.tolist() == [False, True]


def test_another_schema_is_another_version_and_both_answer(archive: Archive) -> None:
    archive.put_rows("users", ["a", "b"], GIVEN)
    columns = archive.record("users").versions[0].columns
    assert [column.name for column in columns] == ["age", "country", "score"]
    assert archive.table_version("users", columns[::-1]).number == 1
    new = archive.table_version("users", [*columns, Column(name="visits", dtype="int32")])
    assert new.number == 2
    archive.put_rows("users", ["a", "b"], {**GIVEN, "visits": [1, 2]}, version=2)
    assert "visits" not in archive.lookup("users", ["a"]).values()
    assert archive.lookup("users", ["b"], version=2).values()["visits"].tolist() == [2]
    archive.catalog.change("users", lambda record: with_default(record, 2, 1.0))
    archive._spaces.look("users")
    assert archive.lookup("users", ["b"]).version == 2


def test_a_table_without_columns_has_them_from_whoever_fills_it(archive: Archive) -> None:
    with pytest.raises(NotFound, match="the table 'films' has no columns yet; headrace archive load"):
        archive.lookup("films", ["a"])
    archive._spaces.look("films")
    archive.table_version("films", [Column(name="title", dtype="text")])
    archive.put_rows("films", ["a"], {"title": ["Heat"]})
    assert archive.lookup("films", ["a"]).values()["title"].tolist() == [b"Heat"]


def test_replacements_by_another_process_are_seen_after_a_moment(tmp_path: Path) -> None:
    with tables(tmp_path, "lmdb", cache_seconds=0.05) as one, tables(tmp_path, "lmdb") as other:
        one.put_rows("users", ["a", "b"], GIVEN)
        assert one.lookup("users", ["a"]).values()["age"].tolist() == [30]
        other.put_rows("users", ["a"], {"age": [31], "score": [1.0]})
        end = time.monotonic() + 20
        while one.lookup("users", ["a"]).values()["age"][0] != 31:
            assert time.monotonic() < end


def test_rows_and_vectors_are_not_mistaken_for_one_another(archive: Archive) -> None:
    with pytest.raises(InvalidRequest, match="vectors: expected rows of columns"):
        archive.put("users", ["a"], np.ones((1, 20)))
    with pytest.raises(InvalidRequest, match="columns: expected vectors"):
        archive.put_rows("texts", ["a"], {"age": [1]})
    with pytest.raises(InvalidRequest, match="expected a feature table, got a space of vectors"):
        archive.lookup("texts", ["a"]).values()
    with pytest.raises(InvalidRequest, match="space: expected vectors, got the feature table 'users'"):
        read_whole(archive, "users")
    with pytest.raises(InvalidRequest, match="space: expected a space of vectors, got the feature table"):
        Backfill(archive, "users", 1, 1)
    with pytest.raises(InvalidRequest, match="expected a feature table, got the space 'texts'"):
        archive.table_version("texts", [Column(name="age", dtype="int64")])


@pytest.mark.parametrize("written", [[0], [-1], [1, 2], [1.5]])
def test_times_that_are_none_are_refused(archive: Archive, written: list[float]) -> None:
    with pytest.raises(InvalidRequest, match="written: expected milliseconds of Unix time"):
        archive.put_rows("users", ["a"], {"age": [1], "score": [1]}, written=np.array(written))


def test_as_many_values_as_keys_are_expected(archive: Archive) -> None:
    with pytest.raises(InvalidRequest, match="columns: expected 1 values per column, one per key, got 2"):
        archive.put_rows("users", ["a"], GIVEN)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"tables": {"A": {}}}, "tables.A: expected a space's name"),
        ({"tables": {"a": {}}, "spaces": {"a": {"dimension": 1}}}, "tables.a: expected another name"),
        ({"tables": {"a": {"columns": {"x": "int"}}}}, r"columns\.x: expected one of float32"),
        ({"tables": {"a": {"ttl_seconds": -1}}}, "ttl_seconds: expected seconds"),
        ({"tables": {"a": {"embedder": "minilm"}}}, "embedder"),
        (
            {"spaces": {"a": {"dimension": 1, "content": "table:b.x"}}},
            "expected a table of this archive, got 'b'",
        ),
        (
            {
                "spaces": {"a": {"dimension": 1, "content": "table:b.x"}},
                "tables": {"b": {"columns": {"x": "int32"}}},
            },
            r"spaces.a.content: expected a text column of b, got 'x'; there are none",
        ),
        ({"spaces": {"a": {"dimension": 1, "content": "table:b"}}}, "expected a table and its column"),
        ({"spaces": {"a": {"dimension": 1, "columns": []}}}, r"a space has vectors; write \[tables.a\]"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        archive_config(settings, "archive.toml", Path())
