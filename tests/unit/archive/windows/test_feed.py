"""A table fed from rows: what is served, by the definition; several versions; going on from a state."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import archive_config
from headrace.archive.tables.file_readers import ColumnFile
from headrace.archive.windows.feed import Feed, after, file_batches, open_stream_batches
from headrace.base.errors import ConfigError, HeadraceError, InvalidRequest, StreamError, Unavailable
from headrace.storage.queues.memory import MemoryMessages
from headrace.storage.settings import MemoryQueue, MemoryStore
from headrace.storage.stores.memory import InMemoryStore
from headrace.storage.stores.store import Item
from tests.streams import batch_of, stream_of
from tests.unit.archive.filling_parts import open_parts

EVERY, HOUR = 60, 3600
START = int(datetime.now(UTC).timestamp()) // HOUR * HOUR - 5 * HOUR
"""In seconds of Unix time; history is kept for a time from now."""

FEED = {"key": "item", "every_seconds": EVERY}
WINDOWS = {
    "orders": {"count": True, "seconds": HOUR},
    "open": {"sum": "change", "seconds": HOUR},
    "clicks": {"count": True, "seconds": 600, "where": ["label", 1]},
}
KEYS = ("a", "b", "c")


def opened(folder: Path, windows: dict[str, object] = WINDOWS, **settings: object) -> Archive:
    table = {"feed": FEED, "windows": windows, "history_seconds": 86_400.0, **settings}
    return open_parts(folder, "lmdb", {"dimension": 4}, tables={"demand": table})


def feed_of(archive: Archive) -> Feed:
    return Feed(archive, "demand", lambda: False)


def rows_of(count: int, seed: int = 0) -> pa.RecordBatch:
    draw = np.random.default_rng(seed)
    seconds = START + np.sort(draw.uniform(0, 3 * HOUR, count))
    return pa.record_batch(
        {
            "item": draw.choice(KEYS, count),
            "timestamp": pa.array((seconds * 1e6).astype(np.int64), pa.timestamp("us", "UTC")),
            "change": draw.choice([-1, 1], count),
            "label": draw.integers(0, 2, count),
            "other": draw.uniform(size=count),
        }
    )


def expected(rows: pa.RecordBatch, key: str, at_ms: int) -> dict[str, float]:
    """What is served at a time, by the definition: of the rows before the last boundary until then."""
    boundary = at_ms // 1000 // EVERY * EVERY
    seconds = rows["timestamp"].cast(pa.int64()).to_numpy() / 1e6
    mine = np.array(rows["item"].to_pylist()) == key

    def inside(length: int) -> np.ndarray:
        return mine & (seconds >= boundary - length) & (seconds < boundary)

    return {
        "orders": int(inside(HOUR).sum()),
        "open": float(rows["change"].to_numpy()[inside(HOUR)].sum()),
        "clicks": int((inside(600) & (rows["label"].to_numpy() == 1)).sum()),
    }


def served(archive: Archive, key: str, version: int = 0) -> dict[str, float]:
    values = archive.lookup("demand", [key], version=version).values()
    return {name: value[0].item() for name, value in values.items()}


@pytest.mark.rest
def test_served_values_count_the_rows_before_the_last_boundary(tmp_path: Path) -> None:
    rows = rows_of(2000)
    with opened(tmp_path) as archive:
        feed = feed_of(archive)
        for start in range(0, len(rows), 97):
            feed.take(rows.slice(start, 97))
            for key in KEYS:
                assert served(archive, key) == expected(rows, key, feed.clock_seconds * 1000)
        feed.finish()
        assert served(archive, "never seen") == {"orders": 0, "open": 0.0, "clicks": 0}
        assert feed.rows == 2000


def test_a_row_is_learnt_with_the_counter_that_was_served_before_it_counted(tmp_path: Path) -> None:
    rows = rows_of(600, seed=1)
    with opened(tmp_path) as archive:
        feed = feed_of(archive)
        feed.take(rows)
        feed.finish()
        keys = rows["item"].to_pylist()
        times = (rows["timestamp"].cast(pa.int64()).to_numpy() // 1000).astype(np.uint64)
        found = archive.as_of("demand", keys, times)
        values = found.values()
        for row, key in enumerate(keys):
            line = {name: value[row].item() for name, value in values.items()}
            assert line == expected(rows, key, int(times[row])), row
        assert not found.lost.any()


def test_a_changed_schema_is_a_new_version_and_the_old_one_is_fed_on(tmp_path: Path) -> None:
    rows = rows_of(2000)
    with opened(tmp_path) as archive:
        feed = feed_of(archive)
        feed.take(rows.slice(0, 1000))
        arrays, meta = feed.state()
    changed = {"orders": {"count": True, "seconds": 1800}, "buyers": {"mean": "other", "seconds": HOUR}}
    with opened(tmp_path, changed) as archive:
        feed = feed_of(archive)
        feed.restore(arrays, meta)
        assert archive.record("demand").default == 1
        feed.take(rows.slice(1000))
        feed.finish()
        at_ms = feed.clock_seconds * 1000
        assert [one.number for one in archive.record("demand").versions] == [1, 2]
        seconds = rows["timestamp"].cast(pa.int64()).to_numpy() / 1e6
        for key in KEYS:
            assert served(archive, key, 1) == expected(rows, key, at_ms)
            mine = np.array(rows["item"].to_pylist()) == key
            inside = mine & (seconds >= feed.clock_seconds - HOUR)
            assert served(archive, key, 2) == {
                "orders": int((mine & (seconds >= feed.clock_seconds - 1800)).sum()),
                "buyers": pytest.approx(rows["other"].to_numpy()[inside].mean()),
            }
        assert archive.catalog.read("demand").default == 2, "its longest window is complete"


def test_a_new_version_has_the_keys_that_have_not_changed_since_too(tmp_path: Path) -> None:
    def at(second: int, *items: str) -> pa.RecordBatch:
        count, moment = len(items), (START + second) * 10**6
        table = {"item": items, "timestamp": [moment] * count, "change": [1] * count, "label": [1] * count}
        return pa.record_batch(table)

    with opened(tmp_path) as archive:
        feed = feed_of(archive)
        feed.take(at(0, *"aaaaaaaaaaaaaaaaa"))
        feed.take(at(60, "b"))
        arrays, meta = feed.state()
    with opened(tmp_path, {"orders": {"count": True, "seconds": HOUR}}) as archive:
        feed = feed_of(archive)
        feed.restore(arrays, meta)
        feed.take(at(120, "b"))
        feed.take(at(180, "b"))
        assert served(archive, "b", 2) == {"orders": 2}
        assert served(archive, "a", 2) == {"orders": 17}


def everything(archive: Archive, version: int = 1) -> dict[bytes, bytes]:
    """All values of a version with when they were written, as they lie in the store."""
    keys = sorted(archive.store.scan(f"demand_v{version}").keys)
    return dict(zip(keys, archive.store.get_many(f"demand_v{version}", keys), strict=True))


def history(archive: Archive) -> dict[str, list[int]]:
    """When what was served at each boundary had been written."""
    times = np.arange(START, START + 4 * HOUR, EVERY, dtype=np.uint64) * np.uint64(1000)
    return {key: archive.as_of("demand", [key] * len(times), times).written.tolist() for key in KEYS}


@pytest.mark.parametrize("history_seconds", [0.0, 86_400.0])
@pytest.mark.parametrize("saved", [5, 100])
def test_a_resumed_feed_writes_the_same_values_as_an_uninterrupted_one(
    tmp_path: Path, saved: int, history_seconds: float
) -> None:
    rows = rows_of(300, seed=5)
    with opened(tmp_path / "whole", history_seconds=history_seconds) as archive:
        whole = feed_of(archive)
        whole.take(rows)
        whole.finish()
        wanted = everything(archive), history(archive) if history_seconds else None
    with opened(tmp_path / "killed", history_seconds=history_seconds) as archive:
        first = feed_of(archive)
        first.take(rows.slice(0, saved))
        arrays, meta = first.state()
        first.take(rows.slice(saved, 200 - saved))  # and is killed: this is not in the state
        between = {key: served(archive, key) for key in KEYS}
        second = feed_of(archive)
        second.restore(arrays, meta)
        second.take(rows.slice(saved, 160 - saved))
        assert {key: served(archive, key) for key in KEYS} == between, "nothing is served that is older"
        second.take(rows.slice(160))
        second.finish()
        assert (everything(archive), history(archive) if history_seconds else None) == wanted
        assert second.rows == whole.rows


class Restarting(InMemoryStore):
    """A store that does not answer a few calls."""

    silent = 0

    def put_many(self, partition: str, items: Sequence[Item], ttl_seconds: float = 0.0) -> None:
        if self.silent:
            self.silent -= 1
            raise Unavailable("the store is starting")
        super().put_many(partition, items, ttl_seconds)


def archive_of(store: InMemoryStore, folder: Path) -> Archive:
    tables = {"demand": {"feed": FEED, "windows": WINDOWS}}
    config = archive_config({"queue": {"kind": "memory"}, "tables": tables}, "archive.toml", folder)
    return Archive(config, store, MemoryMessages(MemoryQueue()))


def test_a_store_that_does_not_answer_is_waited_for_until_the_feed_is_to_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, store = rows_of(300), Restarting(MemoryStore())
    is_stopping = False
    with archive_of(store, tmp_path) as archive:
        feed = Feed(archive, "demand", lambda: is_stopping)
        store.silent = 2
        feed.take(rows.slice(0, 150))
        assert served(archive, "a") == expected(rows, "a", feed.clock_seconds * 1000)
        assert "cannot be stored, trying again: the store is starting" in caplog.text
        store.silent, is_stopping = 10**9, True
        with pytest.raises(Unavailable):
            feed.take(rows.slice(150))


def test_two_feeds_of_one_table_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of(300)
    with opened(tmp_path) as archive:
        one, other = feed_of(archive), feed_of(archive)
        one.take(rows.slice(0, 100))
        one.take(rows.slice(100, 100))
        assert not caplog.text
        other.take(rows)
        one.take(rows.slice(200))
        assert "another feed also writes the table demand: " in caplog.text


def test_a_state_of_another_feed_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as archive:
        arrays, meta = feed_of(archive).state()
    with opened(tmp_path, feed={**FEED, "key": "shop"}) as archive:
        with pytest.raises(ConfigError, match=r"expected one of key = 'shop', got 'item'"):
            feed_of(archive).restore(arrays, meta)
        with pytest.raises(ConfigError, match="not a checkpoint of headrace archive feed"):
            feed_of(archive).restore(arrays, {"model": 1})


def test_a_damaged_record_of_the_progress_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    with opened(tmp_path) as archive:
        arrays, meta = feed_of(archive).state()
        assert archive.store.swap("feed/demand", None, b'{"run": 7}')
        with pytest.raises(
            HeadraceError, match=r"is damaged: .*; start a new feed, with another --checkpoint"
        ):
            feed_of(archive).restore(arrays, meta)


def refused(folder: Path, rows: dict[str, Sequence[object]]) -> str:
    with opened(folder) as archive:
        feed = feed_of(archive)
        feed.maker.check(list(rows))
        with pytest.raises(StreamError) as raised:
            feed.take(pa.record_batch(rows))
        return raised.value.message


def test_rows_that_cannot_be_counted_are_named(tmp_path: Path) -> None:
    good = {"item": ["a", "b"], "timestamp": ["2026-01-01T00:00:00", "x"], "change": [1, 1], "label": [0, 1]}
    assert "row 1, field 'timestamp'" in refused(tmp_path, good)
    for time in (-1, -(2**63)):
        told = refused(tmp_path, {**good, "timestamp": [0, time]})
        assert f"row 1, field 'timestamp': expected a time since 1970, got {time} µs; correct the row" in told
    good["timestamp"] = [1, 2]
    told = "row 0, field 'item': expected a key of up to 8192 bytes of UTF-8, got 8193"
    assert told in refused(tmp_path, {**good, "item": ["a" * 8193, "b" * 9000]})
    told = "row 1, field 'change': expected a number, got 'many'"
    assert told in refused(tmp_path, {**good, "change": ["1", "many"]})
    assert "expected texts or whole numbers" in refused(tmp_path, {**good, "item": [0.5, 1.5]})
    with (
        opened(tmp_path) as archive,
        pytest.raises(ConfigError, match="column 'label' is missing; there are"),
    ):
        feed_of(archive).maker.check(["item", "timestamp", "change"])


@pytest.mark.parametrize("time", [253_402_300_799 * 10**6, 2**63 - 1, (START + 100 * 365 * 86_400) * 10**6])
def test_a_row_of_the_far_future_closes_no_window_and_is_told(tmp_path: Path, time: int) -> None:
    times = [START * 10**6] * 16 + [time] + [(START + 1) * 10**6] * 3
    rows = pa.record_batch({"item": ["a"] * 20, "timestamp": times, "change": [1] * 20, "label": [1] * 20})
    with opened(tmp_path) as archive:
        feed = feed_of(archive)
        feed.take(rows)
        feed.finish()
        assert served(archive, "a") == {"orders": 19, "open": 19.0, "clicks": 19}
        assert feed.counters.told.refused == 1
        assert feed.clock_seconds == START + EVERY


@pytest.mark.parametrize("time", [0, 2**63 - 1])
def test_the_first_and_the_last_times_there_are_are_counted(tmp_path: Path, time: int) -> None:
    rows = {"item": ["a"] * 20, "timestamp": [time] * 20, "change": [1] * 20, "label": [1] * 20}
    with opened(tmp_path) as archive:
        feed = feed_of(archive)
        feed.take(pa.record_batch(rows))
        feed.finish()
        assert served(archive, "a") == {"orders": 20, "open": 20.0, "clicks": 20}
        assert feed.clock_seconds == time // 10**6 // EVERY * EVERY + EVERY


def test_texts_of_a_csv_file_count_as_what_they_say(tmp_path: Path) -> None:
    with opened(tmp_path) as archive:
        feed = feed_of(archive)
        columns = {
            "item": ["a", "", "a", None, "a"],
            "timestamp": [f"2026-01-01T00:00:0{row}Z" for row in range(5)],
            "change": ["2.5", "1", "", "1", "-1"],
            "label": ["1", "1", "1", "1", "0"],
        }
        feed.take(pa.record_batch(columns))
        feed.finish()
        assert served(archive, "a") == {"orders": 3, "open": 1.5, "clicks": 2}
        assert feed.maker.keyless == 2


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"windows": {"a": {"seconds": 60}}}, "exactly one of count = true"),
        ({"windows": {"a": {"count": True, "sum": "x", "seconds": 60}}}, "exactly one of count = true"),
        ({"windows": {"a": {"count": True, "seconds": 90}}}, "a multiple of every_seconds, 60"),
        ({"windows": {"a": {"count": True, "seconds": 60 * 10_001}}}, "at most 10000 of it"),
        ({"windows": {"a": {"sum": "x", "seconds": 60, "dtype": "int64"}}}, "only counts are whole"),
        ({"windows": {"a": {"mean": "x", "seconds": 60, "per_seconds": 60}}}, "0 with mean"),
        ({"ttl_seconds": 3600.0}, "0, or more than the longest window, 3600"),
        ({"feed": None}, "the columns of the stream, which windows need"),
        ({"columns": {"age": "int64"}}, "a separate table, without columns"),
        ({"feed": {"key": ""}}, r"feed\.key"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, object], told: str) -> None:
    given = {name: value for name, value in settings.items() if name != "windows"}
    with pytest.raises(ConfigError, match=told):
        opened(tmp_path, settings.get("windows", WINDOWS), **given)  # type: ignore[arg-type]


def test_a_table_without_windows_is_not_fed(tmp_path: Path) -> None:
    tables = {"users": {"columns": {"age": "int64"}}}
    told = pytest.raises(ConfigError, match="the table 'users' has no windows to be fed")
    with open_parts(tmp_path, "memory", {"dimension": 4}, tables=tables) as archive, told:
        Feed(archive, "users", lambda: False)


def test_a_number_too_large_to_sum_counts_as_missing(tmp_path: Path) -> None:
    rows = rows_of(2000)
    changes = rows["change"].to_numpy(zero_copy_only=False).astype(np.float64)
    changes[[5, 6, 7, 8]] = 1e308
    with opened(tmp_path) as archive:
        feed = feed_of(archive)
        feed.take(rows.set_column(2, "change", pa.array(changes)))
        feed.finish()
        changes[[5, 6, 7, 8]] = 0.0
        left = rows.set_column(2, "change", pa.array(changes))
        for key in KEYS:
            assert served(archive, key) == expected(left, key, feed.clock_seconds * 1000)


def test_a_long_text_is_not_said_back_whole(tmp_path: Path) -> None:
    rows = rows_of(3).set_column(2, "change", pa.array(["x" * 10_000] * 3))
    with opened(tmp_path) as archive, pytest.raises(StreamError, match="expected a number") as refused:
        feed_of(archive).take(rows)
    assert len(refused.value.message) < 500


def test_a_dictionary_is_compared_as_its_values_are(tmp_path: Path) -> None:
    """And is not made plain for that: few bytes of indices may stand for gigabytes."""
    rows = rows_of(2000)
    codes = rows["label"].cast(pa.int8())
    coded = pa.DictionaryArray.from_arrays(codes, pa.array(["0", "1", "never named" * 1000]))
    with opened(tmp_path) as archive:
        feed = feed_of(archive)
        feed.take(rows.set_column(3, "label", coded))
        feed.finish()
        for key in KEYS:
            assert served(archive, key) == expected(rows, key, feed.clock_seconds * 1000)


# Batches of a stream, as a feed takes them.

ROWS = batch_of(item=[f"{row}" for row in range(100)], x=list(range(100)))


def numbers_in(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row for batch in batches for row in batch["x"].to_pylist()]


def test_rows_that_arrive_together_form_one_batch() -> None:
    with open_stream_batches(io.BytesIO(stream_of(ROWS, rows=7))) as (names, batches, _):
        assert names == ["item", "x"]
        given = list(batches)
    assert [batch.num_rows for batch in given] == [100]
    assert numbers_in(iter(given)) == list(range(100))


def test_rows_of_a_slow_pipe_are_given_as_they_come() -> None:
    content = stream_of(ROWS, rows=50)
    listen, tell = os.pipe()
    with os.fdopen(listen, "rb", buffering=0) as file, os.fdopen(tell, "wb", buffering=0) as pipe:
        half = content[: len(content) * 2 // 3]  # one of the two batches, and a part of the other
        pipe.write(half)
        with open_stream_batches(file) as (_, batches, wait):
            assert wait(60.0)
            assert next(batches).num_rows == 50
            assert not wait(0.0)
            pipe.write(content[len(half) :])
            pipe.close()
            assert numbers_in(batches) == list(range(50, 100))


def test_rows_before_a_cut_are_yielded_before_the_error() -> None:
    content = stream_of(ROWS, rows=50)
    given = []
    with open_stream_batches(io.BytesIO(content[:-100])) as (_, batches, _wait):
        given.append(next(batches))
        with pytest.raises(StreamError, match="it is cut within a message"):
            next(batches)
    assert numbers_in(iter(given)) == list(range(50))


def test_small_batches_of_a_file_are_given_together(tmp_path: Path) -> None:
    """What is written is what has changed by the end of a batch: small ones have a key written more often."""
    (tmp_path / "rows.arrows").write_bytes(stream_of(ROWS, rows=7))
    names, batches, wait = file_batches(ColumnFile(tmp_path / "rows.arrows"), ["x", "not there"])
    assert names == ["item", "x"]
    assert wait(0.0)
    given = list(batches)
    assert [batch.num_rows for batch in given] == [100]
    assert numbers_in(iter(given)) == list(range(100))


def test_rows_before_damage_in_a_file_are_yielded_before_the_error(tmp_path: Path) -> None:
    (tmp_path / "rows.arrows").write_bytes(stream_of(ROWS, rows=25)[:-100])
    _, batches, _ = file_batches(ColumnFile(tmp_path / "rows.arrows"), ["x"])
    given = [next(batches)]
    with pytest.raises(InvalidRequest):
        next(batches)
    assert numbers_in(iter(given)) == list(range(75))


@pytest.mark.parametrize("skipped", [0, 1, 49, 50, 51, 100])
def test_rows_that_were_taken_are_passed_over(skipped: int) -> None:
    batches = [ROWS.slice(0, 50), ROWS.slice(50)]
    assert numbers_in(after(iter(batches), skipped)) == list(range(skipped, 100))


def test_a_stream_shorter_than_what_was_taken_is_another_one() -> None:
    with pytest.raises(StreamError, match="it has 100 rows, fewer than the 101 that were read"):
        list(after(iter([ROWS]), 101))
