"""Rows joined with what the archive held when they were served: learnt as served, byte for byte."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.archive.embedders.embedder import Embedder
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.model.columns import Column
from headrace.archive.model_inputs.assembly import Filled, ModelInputs
from headrace.archive.model_inputs.stream_join import Join, JoinSettings
from headrace.archive.operations.space_versions import drop_version
from headrace.base.errors import ConfigError, StreamError
from headrace.config import InputSource
from headrace.storage.opening import open_queue, open_store
from headrace.stream.schema import METADATA_KEY, Field, Schema, parse_schema
from headrace.stream.stream_io import StreamRows
from tests.unit.archive.filling_parts import LengthEmbedder
from tests.unit.archive.model_inputs.lookups import fill
from tests.waiting import until

SOURCES = {
    "image": InputSource(space="images", key="url"),
    "clicks": InputSource(space="ads", column="clicks", key="ad", key_dtype="int64"),
    "city": InputSource(space="ads", column="city", key="ad", key_dtype="int64"),
}
SCHEMA = Schema(fields=(Field(name="label", role="label"), Field(name="served", role="timestamp")))


@pytest.fixture(params=["lmdb", "redis", "cassandra"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    with opened(request, tmp_path, request.param) as made:
        yield made


@pytest.fixture
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Archive]:
    with opened(request, tmp_path, "lmdb") as made:
        yield made


def opened(request: pytest.FixtureRequest, folder: Path, kind: str, **ads: object) -> Archive:
    store: dict[str, object] = {"kind": kind}
    own = f"j{time.time_ns()}"
    if kind == "redis":
        address = request.getfixturevalue("redis_server").address
        store |= {"address": address, "prefix": own, "timeout_seconds": 60.0}
    if kind == "cassandra":
        nodes = [request.getfixturevalue("cassandra_server").address]
        store |= {"contact_points": nodes, "keyspace": own, "timeout_seconds": 60.0}
    columns = {"clicks": "int64", "city": {"dtype": "text", "default": "?"}}
    config = archive_config(
        {
            "store": store,
            "queue": {"kind": "memory"},
            "spaces": {"images": {"embedder": "lengths", "history_seconds": 60.0, "dtype": "float16"}},
            "tables": {"ads": {"columns": columns, "history_seconds": 60.0, **ads}},
        },
        "archive.toml",
        folder,
    )
    made: Callable[[str], Embedder] = lambda _: LengthEmbedder()  # noqa: E731
    return Archive(config, open_store(config.store), open_queue(config.queue), made)


class Server:
    """Looks up as serving does, and logs what it answered with."""

    def __init__(self, archive: Archive, **versions: int) -> None:
        self.archive, self.versions = archive, versions
        self.rows: list[dict[str, Any]] = []
        self.given: list[Filled] = []

    def serve(self, url: str | None, ad: int) -> Filled:
        request = {"url": np.array([(url or "").encode()], object), "ad": np.array([ad])}
        inputs = ModelInputs(SOURCES, self.versions, {})
        look = lambda asked: self.archive.lookup(  # noqa: E731
            asked.space, asked.keys, version=asked.version, timeout_seconds=30.0
        )
        filled = fill(inputs, request, look, time.time_ns() // 1_000_000)
        row: dict[str, Any] = {"label": 0, "served": now_us(), "url": url, "ad": ad}
        for name, looked in filled.looked_up.items():
            row |= {f"{name}.written": int(looked.written[0]), f"{name}.version": int(looked.version[0])}
        self.rows.append(row)
        self.given.append(filled)
        tick()
        return filled

    def stream(self, *, recorded: bool = True) -> bytes:
        rows = [{name: one for name, one in row.items() if recorded or "." not in name} for row in self.rows]
        return stream_of(rows)

    def is_equal_to(self, joined: pa.Table) -> bool:
        """Whether rows have what was served, byte for byte."""
        for row, filled in enumerate(self.given):
            for name, values in filled.inputs.items():
                got = joined.column(name).combine_chunks().slice(row, 1)
                if values.ndim == 2:
                    same = got.flatten().to_numpy().tobytes() == values.astype(np.float32).tobytes()
                else:
                    said = values[0].decode() if isinstance(values[0], bytes) else values[0].item()
                    same = got[0].as_py() == said
                if not same:
                    return False
        return True


def stream_of(rows: list[dict[str, Any]], schema: Schema = SCHEMA) -> bytes:
    batch = pa.RecordBatch.from_pylist(rows)
    batch = batch.replace_schema_metadata({METADATA_KEY: schema.encode()})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        for start in range(0, len(rows), 5):
            writer.write_batch(batch.slice(start, 5))
    return out.getvalue()


def join(
    archive: Archive, stream: bytes, sources: Mapping[str, InputSource] = SOURCES, **settings: Any
) -> tuple[Join, pa.Table]:
    rows = StreamRows(io.BytesIO(stream), None)
    joined = Join(archive, JoinSettings(sources, **settings), rows.columns, rows.schema)
    table = pa.Table.from_batches([joined.batch(batch) for batch in rows], joined.arrow_schema)
    rows.close()
    return joined, table


def set_ad(archive: Archive, ad: int, clicks: int, city: str = "Zug") -> None:
    archive.put_rows("ads", [str(ad)], {"clicks": np.array([clicks]), "city": np.array([city])})


def embed(archive: Archive, key: str, value: float, version: int = 0) -> None:
    archive.put("images", [key], np.full((1, 4), value), version=version)


def now_us() -> int:
    return time.time_ns() // 1000


def tick() -> None:
    """Into the next millisecond, as clocks in different places are no better than that."""
    until = time.time_ns() // 1_000_000 + 2
    while time.time_ns() // 1_000_000 < until:
        pass


@pytest.mark.parametrize("recorded", [True, False])
def test_rows_are_learnt_as_they_were_served(archive: Archive, recorded: bool) -> None:
    server, rng = Server(archive), np.random.default_rng(1)
    for step in range(12):
        server.serve(["a", "b", None, "c" * 3000][step % 4], step % 3)
        if step % 2:
            set_ad(archive, step % 3, step, f"city {step}")
        if step % 3 == 0:
            archive.put("images", ["a", "c" * 3000], rng.normal(size=(2, 4)))
        tick()
    assert len({filled.inputs["image"].tobytes() for filled in server.given}) > 4
    joined, table = join(archive, server.stream(recorded=recorded))
    assert server.is_equal_to(table)
    assert table.column("url").to_pylist() == [row["url"] for row in server.rows]
    counts = joined.counts["image"]
    assert (counts.rows, counts.keys, counts.lost) == (12, 9, 0)
    assert counts.found == sum(int(filled.looked_up["image"].written[0] > 0) for filled in server.given)
    assert counts.recorded == 12 * recorded


def test_a_vector_that_came_between_serving_and_training_is_learnt_as_missing(local: Archive) -> None:
    server = Server(local)
    server.serve("new", 1)
    embed(local, "new", 7.0)
    tick()
    server.serve("new", 1)
    for recorded in (True, False):
        joined, table = join(local, server.stream(recorded=recorded))
        assert table.column("image").to_pylist() == [[0.0] * 4, [7.0] * 4]
        assert (joined.counts["image"].found, joined.counts["image"].missing) == (1, 1)


def test_a_counter_that_the_click_itself_moved_is_learnt_at_its_old_value(local: Archive) -> None:
    set_ad(local, 1, 41)
    tick()
    server = Server(local)
    server.serve("a", 1)
    clicked = server.rows[0]["served"] // 1000  # the click is of the view's own time
    local.put_rows(
        "ads",
        ["1"],
        {"clicks": np.array([42]), "city": np.array(["Zug"])},
        written=np.array([clicked], np.uint64),
    )
    assert local.lookup("ads", ["1"]).values()["clicks"].tolist() == [42]
    for recorded in (True, False):
        _, table = join(local, server.stream(recorded=recorded))
        assert table.column("clicks").to_pylist() == [41]


def test_rows_may_record_only_some_inputs(local: Archive) -> None:
    server = Server(local)
    for step in range(11):
        server.serve("a", 1)
        set_ad(local, 1, step)
        embed(local, "a", float(step))
        tick()
    for number, row in enumerate(server.rows):
        for name in ("image", "clicks") if number % 2 else ("city",):
            row[f"{name}.written"] = None
    joined, table = join(local, server.stream())
    assert server.is_equal_to(table)
    assert [joined.counts[name].recorded for name in SOURCES] == [6, 6, 5]


def test_keys_forgotten_since_are_joined_as_missing(local: Archive) -> None:
    embed(local, "a", 1.0)
    server = Server(local)
    tick()
    server.serve("a", 1)
    local.forget("images", ["a"])
    for recorded in (True, False):
        joined, table = join(local, server.stream(recorded=recorded))
        assert table.column("image").to_pylist() == [[0.0] * 4]
        counts = joined.counts["image"]
        assert (counts.found, counts.lost, counts.missing) == (0, 0, 1)


def test_values_without_history_are_counted_as_lost(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with opened(request, tmp_path, "lmdb", history_seconds=0.0) as archive:
        set_ad(archive, 1, 41)
        tick()
        server = Server(archive)
        server.serve("a", 1)
        set_ad(archive, 1, 42)
        for recorded in (True, False):
            joined, table = join(archive, server.stream(recorded=recorded))
            assert table.column("clicks").to_pylist() == [0]
            assert (joined.counts["clicks"].lost, joined.counts["clicks"].missing) == (1, 0)


def test_the_age_that_counts_is_that_at_the_rows_time(local: Archive) -> None:
    source = {"clicks": InputSource(space="ads", column="clicks", key="ad", max_age_seconds=0.05)}
    set_ad(local, 1, 5)
    written = int(local.lookup("ads", ["1"]).written[0])
    rows = [{"label": 0, "served": (written + age) * 1000, "ad": 1} for age in (10, 49, 51, 500)]
    joined, table = join(local, stream_of(rows), source)
    assert table.column("clicks").to_pylist() == [5, 5, 0, 0]
    assert joined.counts["clicks"].too_old == 2


def test_a_newer_encoder_is_learnt_with_rows_that_an_older_one_served(local: Archive) -> None:
    server = Server(local)
    embed(local, "a", 1.0)
    tick()
    server.serve("a", 1)
    server.serve("later", 1)
    tick()
    newer = local.add_version("images", LengthEmbedder("lengths-2")).number
    embed(local, "a", 2.0, newer)
    embed(local, "later", 3.0, newer)
    for recorded in (True, False):
        joined, table = join(local, server.stream(recorded=recorded), versions={"images": newer})
        assert table.column("image").to_pylist() == [[2.0] * 4, [0.0] * 4]
        assert joined.schema.spaces == {"images": 2, "ads": 1}
        assert joined.counts["image"].lost == 0


@pytest.mark.parametrize("recorded", [True, False])
def test_rows_that_the_old_version_serves_during_a_backfill_are_learnt_as_such(
    local: Archive, recorded: bool
) -> None:
    """The new version is there, and still empty: that is not what the rows were served with."""
    server = Server(local)
    embed(local, "a", 1.0)
    newer = local.add_version("images", LengthEmbedder("lengths-2")).number
    tick()
    server.serve("a", 1)
    server.serve("later", 1)
    embed(local, "a", 2.0, newer)
    embed(local, "later", 3.0, newer)
    tick()
    local.catalog.move_default("images", newer)
    until(lambda: local.lookup("images", ["a"]).version == newer)
    server.serve("later", 1)
    joined, table = join(local, server.stream(recorded=recorded), versions={"images": newer})
    assert table.column("image").to_pylist() == [[2.0] * 4, [0.0] * 4, [3.0] * 4]
    assert joined.counts["image"].lost == 0


@pytest.mark.parametrize("recorded", [True, False])
def test_rows_of_a_model_that_stays_with_a_version_are_learnt_as_served(
    local: Archive, recorded: bool
) -> None:
    """The default has moved: what it had at the time, or had not, is not what this model got."""
    server = Server(local, images=1)
    embed(local, "replaced", 1.0)
    newer = local.add_version("images", LengthEmbedder("lengths-2")).number
    local.catalog.move_default("images", newer)
    until(lambda: local.lookup("images", ["a"]).version == newer)
    embed(local, "new", 2.0, newer)
    tick()
    for key in ("replaced", "new"):
        server.serve(key, 1)
    embed(local, "replaced", 3.0, 1)
    embed(local, "new", 4.0, 1)
    stream = server.stream(recorded=recorded)
    joined, table = join(local, stream, versions={"images": 1}, served={"images": 1})
    assert table.column("image").to_pylist() == [[1.0] * 4, [0.0] * 4]
    assert server.is_equal_to(table)
    assert joined.counts["image"].lost == 0
    # A newer model gets the new vector where this one had a vector.
    _, table = join(local, stream, versions={"images": newer}, served={"images": 1})
    assert table.column("image").to_pylist() == [[0.0] * 4, [0.0] * 4]
    embed(local, "replaced", 5.0, newer)
    _, table = join(local, stream, versions={"images": newer}, served={"images": 1})
    assert table.column("image").to_pylist() == [[5.0] * 4, [0.0] * 4]


def test_rows_that_a_dropped_version_served_are_lost_by_time(local: Archive) -> None:
    server = Server(local)
    embed(local, "a", 1.0)
    tick()
    server.serve("a", 1)
    newer = local.add_version("images", LengthEmbedder("lengths-2")).number
    embed(local, "a", 2.0, newer)
    local.catalog.move_default("images", newer)
    drop_version(local, "images", 1)
    until(lambda: local.record("images").is_gone(1))
    joined, _ = join(local, server.stream(recorded=False), versions={"images": newer})
    assert joined.counts["image"].lost == 1


def test_a_table_with_another_column_is_learnt_as_it_was_at_the_rows_time(local: Archive) -> None:
    server = Server(local)
    server.serve("a", 1)  # nothing of this ad was known
    set_ad(local, 1, 3)
    tick()
    server.serve("a", 1)
    columns = local.reader("ads").version.columns
    more = (*columns, Column(name="views", dtype="int64", default=0))
    newer = local.table_version("ads", more).number
    for views, row in enumerate(server.rows):
        values = {"clicks": np.array([7]), "city": np.array(["Zug"]), "views": np.array([views])}
        written = np.array([row["served"] // 1000 - 1], np.uint64)
        local.put_rows("ads", ["1"], values, version=newer, written=written)
    source = {"views": InputSource(space="ads", column="views", key="ad"), **SOURCES}
    _, table = join(local, server.stream(), source, versions={"ads": newer})
    assert table.column("clicks").to_pylist() == [0, 7]
    assert table.column("views").to_pylist() == [0, 1]


def test_the_joined_stream_says_what_its_columns_are_and_which_versions(local: Archive) -> None:
    server = Server(local)
    server.serve("a", 1)
    joined, table = join(local, server.stream())
    said = parse_schema((table.schema.metadata or {})[METADATA_KEY])
    assert said == joined.schema
    assert said.spaces == {"images": 1, "ads": 1}
    fields = said.by_name
    assert (fields["image"].role, fields["image"].size) == ("vector", 4)
    assert (fields["clicks"].role, fields["clicks"].text) == ("categorical", False)
    assert (fields["city"].role, fields["city"].text) == ("categorical", True)


@pytest.mark.parametrize(
    ("row", "sources", "settings", "problem"),
    [
        ({}, {}, {}, "inputs: expected a table"),
        (
            {"url": "a", "ad": 1},
            SOURCES,
            {"versions": {"x": 1}},
            "no input comes from 'x'; inputs come from images",
        ),
        ({"ad": 1}, SOURCES, {}, "inputs.image.key: the rows have no column 'url'"),
        ({"url": "a", "ad": 1, "city": "x"}, SOURCES, {}, "inputs.city: the rows have a column of that name"),
        (
            {"url": 0.5, "ad": 1},
            SOURCES,
            {},
            "texts or whole numbers in the column of keys 'url', got double",
        ),
        ({"url": "a", "ad": 1}, SOURCES, {"time": "when"}, "time: the rows have no column 'when'"),
        ({"url": "a", "ad": 1}, SOURCES, {"time": "url"}, "time: expected timestamps, or microseconds"),
        (
            {"a": "1"},
            {"x": InputSource(space="ads", key="a", column="y")},
            {},
            "expected one of clicks, city",
        ),
        (
            {"a": "1"},
            {"x": InputSource(space="images", key="a", column="y")},
            {},
            "expected none, it has vectors",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused_before_the_join(
    local: Archive,
    row: dict[str, Any],
    sources: dict[str, InputSource],
    settings: dict[str, Any],
    problem: str,
) -> None:
    with pytest.raises(ConfigError, match=problem):
        join(local, stream_of([{"label": 0, "served": 1, **row}]), sources, **settings)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"url": b"\xff", "served": 1}, r"row 6, field 'url': expected a key in UTF-8"),
        ({"url": b"a", "served": None}, r"row 6, field 'served': expected a time, got null"),
    ],
)
def test_a_wrong_row_is_named(local: Archive, row: dict[str, Any], problem: str) -> None:
    source = {"image": SOURCES["image"]}
    rows = [{"label": 0, "url": b"a", "served": 1}] * 6 + [{"label": 0, **row}]
    with pytest.raises(StreamError, match=problem):
        join(local, stream_of(rows), source)


def test_rows_without_a_time_must_say_it(local: Archive) -> None:
    schema = Schema(fields=(Field(name="label", role="label"),))
    row = {"label": 0, "url": "a", "ad": 1}
    with pytest.raises(ConfigError, match=r"time: .* some rows lack 'image.written'"):
        join(local, stream_of([row], schema))
    whole = row | {f"{name}.written": 0 for name in SOURCES}
    assert join(local, stream_of([whole], schema))[0].counts["image"].missing == 1
