"""Files loaded into tables and spaces: what they become, what is refused and where, and running it again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from headrace.archive.lookup.archive import Archive
from headrace.archive.tables.file_readers import ColumnFile
from headrace.archive.tables.load import Load, Stopped
from headrace.base.errors import HeadraceError, InvalidRequest, NotFound
from tests.unit.archive.filling_parts import open_parts
from tests.unit.archive.tables.loading_parts import load_table, loader

COLUMNS = {"age": "int64", "country": {"dtype": "text", "bytes": 8, "default": "??"}, "score": "float32"}
USERS = pa.table(
    {
        "user_id": [f"u{row}" for row in range(20_000)],
        "age": pa.array(np.arange(20_000) % 100, pa.int64()),
        "country": ["CH" if row % 2 else "AT" for row in range(20_000)],
        "score": pa.array(np.arange(20_000) / 4, pa.float32()),
    }
)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    tables = {"users": {"columns": COLUMNS}, "films": {}}
    with open_parts(tmp_path, "memory", {"dimension": 3}, tables=tables) as opened:
        yield opened


def written(file: Path, table: pa.Table) -> Path:
    if file.suffix == ".parquet":
        pa.parquet.write_table(table, file, row_group_size=7000)
    elif file.suffix in (".csv", ".gz", ".tsv"):
        pa.csv.write_csv(
            table,
            pa.CompressedOutputStream(str(file), "gzip") if file.suffix == ".gz" else file,
            pa.csv.WriteOptions(delimiter="\t" if file.suffix == ".tsv" else ","),
        )
    elif file.suffix == ".arrows":
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, 3000)
    else:
        pa.feather.write_feather(table, file, compression="uncompressed", chunksize=9000)
    return file


def of(archive: Archive, table: str, *keys: str) -> dict[str, list[object]]:
    lookup = archive.lookup(table, keys)
    return {"found": lookup.found.tolist()} | {name: one.tolist() for name, one in lookup.values().items()}


@pytest.mark.parametrize(
    "name", ["users.parquet", "users.arrow", "users.arrows", "users.csv", "users.csv.gz", "users.tsv"]
)
def test_a_file_of_any_format_fills_a_table_and_says_how_far_it_is(
    archive: Archive, tmp_path: Path, name: str
) -> None:
    load = loader(archive, "users", written(tmp_path / name, USERS))
    shares: list[float] = []
    target = load.table("", "", lambda rows, share: None)
    load.run(target, lambda rows, share: shares.append(share))
    assert load.rows == 20_000
    assert (target.key, target.is_new, target.version.number, target.left_out) == ("user_id", False, 1, [])
    assert len(shares) > 1
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1, abs=0.05)
    assert of(archive, "users", "u7", "u19999", "u20000") == {
        "found": [True, True, False],
        "age": [7, 99, 0],
        "country": [b"CH", b"CH", b"??"],
        "score": [1.75, 4999.75, 0.0],
    }


@pytest.mark.parametrize("name", ["films.parquet", "films.csv"])
def test_a_table_without_columns_has_them_from_its_first_file(
    archive: Archive, tmp_path: Path, name: str
) -> None:
    films = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "title": ["Heat", "Amélie"],
            "year": [1995, None],
            "rating": [8.25, 8.5],
            "zip": ["01234", "8000"],
        }
    )
    target = load_table(archive, "films", written(tmp_path / name, films))
    assert (target.key, target.is_new, target.nulls) == ("id", True, {"year": 1})
    there = {one.name: (one.dtype, one.bytes, one.default) for one in target.version.columns}
    assert there == {
        "title": ("text", 16, None),
        "year": ("int64", 64, 0),
        "rating": ("float64", 64, None),
        "zip": ("text", 16, None),
    }
    assert of(archive, "films", "1", "2", "3") == {
        "found": [True, True, False],
        "title": [b"Heat", "Amélie".encode(), b""],
        "year": [1995, 0, 0],
        "rating": [8.25, 8.5, 0.0],
        "zip": [b"01234", b"8000", b""],
    }


def test_arrow_types_map_to_column_dtypes(archive: Archive, tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    rows = pa.table(
        {
            "id": pa.array(["a", "b"]).dictionary_encode(),
            "kind": pa.array(["x", None]).dictionary_encode(),
            "seen": [when, None],
            "is_new": [True, False],
            "ratio": pa.array([0.5, float("nan")], pa.float32()),
            "small": pa.array([1, 2], pa.uint16()),
            "tags": [["a"], []],
        }
    )
    target = load_table(archive, "films", written(tmp_path / "films.parquet", rows))
    assert target.left_out == ["tags"]
    assert target.nulls == {"kind": 1, "seen": 1, "ratio": 1}
    assert of(archive, "films", "a", "b") == {
        "found": [True, True],
        "kind": [b"x", b""],
        "seen": [int(when.timestamp() * 1000), 0],
        "is_new": [1, 0],
        "ratio": [0.5, 0.0],
        "small": [1, 2],
    }


def test_a_changed_schema_is_a_new_version_and_what_fits_is_none(archive: Archive, tmp_path: Path) -> None:
    file = tmp_path / "films.csv"
    file.write_text("id,title,rating\na,Heat,8.5\n")
    assert load_table(archive, "films", file).version.number == 1
    file.write_text("id,rating,title\nb,8,Ran\n")  # another order, and whole numbers: they fit
    assert load_table(archive, "films", file).version.number == 1
    file.write_text("id,title,rating,year\na,Heat,8.5,1995\nb,Ran,8,1985\n")
    target = load_table(archive, "films", file, is_other=True)
    assert (target.version.number, target.is_new) == (2, True)
    lookup = archive.lookup("films", ["a", "b"])
    assert (lookup.version, lookup.found.tolist()) == (2, [True, True])
    assert archive.lookup("films", ["b"], version=1).found.all()
    assert load_table(archive, "films", file).is_new is False


def test_a_default_moves_only_when_all_is_loaded_and_running_it_again_ends_it(
    archive: Archive, tmp_path: Path
) -> None:
    load_table(archive, "films", written(tmp_path / "films.parquet", USERS.select(["user_id", "age"])))
    file = written(tmp_path / "more.parquet", USERS)
    stopping = threading.Event()
    load = Load(archive, "films", ColumnFile(file), stopping)
    target = load.table("", "", lambda rows, share: None, is_other_allowed=True)

    def stop(rows: int, share: float) -> None:
        stopping.set()

    with pytest.raises(Stopped):
        load.run(target, stop)
    assert 0 < load.rows < 20_000
    archive._spaces.look("films")
    assert archive.lookup("films", ["u1"]).version == 1
    assert load_table(archive, "films", file, is_other=True).version.number == 2
    assert archive.lookup("films", ["u1", "u19999"]).found.all()
    assert archive.lookup("films", ["u1"]).version == 2


WHEN = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
MILLISECONDS = [int(when.timestamp() * 1000) for when in WHEN]


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("a.parquet", WHEN),
        ("a.csv", WHEN),
        ("b.csv", MILLISECONDS),
        ("c.csv", [when.isoformat().replace("+00:00", "") for when in WHEN]),
        ("b.parquet", [when.date() for when in WHEN]),
    ],
)
def test_rows_with_their_times_are_found_as_they_were(tmp_path: Path, name: str, times: list[object]) -> None:
    rows = pa.table({"id": ["a", "b", "a", "a"], "at": times, "n": [1, 2, 3, 4]})
    tables = {"films": {"history_seconds": 10**9}}
    with open_parts(tmp_path, "memory", {"dimension": 3}, tables=tables) as archive:
        target = load_table(archive, "films", written(tmp_path / name, rows), written="at")
        assert [column.name for column in target.version.columns] == ["n"]
        found = archive.lookup("films", ["a", "b"])
        assert (found.values()["n"].tolist(), found.written.tolist()) == ([4, 2], MILLISECONDS[3:0:-2])
        asked = np.array([MILLISECONDS[0] - 1, MILLISECONDS[0], MILLISECONDS[3] - 1], np.uint64)
        then = archive.as_of("films", ["a", "a", "a"], asked)
        assert then.values()["n"].tolist() == [0, 1, 3]
        assert then.found.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        ([10**12, None], "row 2, column 'at': expected a time from 1990 to 2100, got None"),
        ([10**12, -5], "row 2, column 'at': expected a time from 1990 to 2100, got -5"),
        ([1_700_000_000], "got 1700000000; it would be a valid time in seconds: write milliseconds"),
        ([1_700_000_000_000_000], "it would be a valid time in microseconds: write milliseconds"),
        ([0.5, 1], "column 'at': expected milliseconds of Unix time, or times such as .*, got double"),
        (["2026-01-01", "soon"], "row 2, column 'at': expected milliseconds of Unix time, .*, got 'soon'"),
    ],
)
def test_times_that_are_none_are_refused(
    archive: Archive, tmp_path: Path, times: list[object], problem: str
) -> None:
    file = written(
        tmp_path / "u.parquet",
        pa.table({"id": ["a", "b"][: len(times)], "at": times, "n": [1, 2][: len(times)]}),
    )
    with pytest.raises(InvalidRequest, match=problem):
        load_table(archive, "films", file, written="at")


def test_vectors_are_loaded_into_a_space(archive: Archive, tmp_path: Path) -> None:
    given = np.random.default_rng(1).normal(size=(5000, 3)).astype(np.float32)
    kinds = {
        "a.parquet": pa.FixedSizeListArray.from_arrays(given.reshape(-1), 3),
        "b.parquet": pa.array(list(given.astype(np.float64))),
        "c.arrow": pa.array(list(given.astype(np.float16))),
    }
    for name, vectors in kinds.items():
        rows = pa.table({"key": [f"{name}{row}" for row in range(5000)], "other": [0] * 5000, "v": vectors})
        load = loader(archive, "texts", written(tmp_path / name, rows))
        target = load.vectors("", "", 0)
        assert (target.key, target.vectors, target.left_out) == ("key", "v", ["other"])
        load.run(target, lambda rows, share: None)
        found = archive.lookup("texts", [f"{name}{row}" for row in range(5000)])
        assert found.found.all()
        np.testing.assert_allclose(found.vectors, given, atol=2e-3 if name == "c.arrow" else 0)


NAN = float("nan")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"user_id": ["a", None]}, r"row 2, column 'user_id': expected a key of 1 to 8192 .*, got null"),
        ({"user_id": ["a", ""]}, r"row 2, column 'user_id': expected a key of 1 to 8192 .*, got 0 bytes"),
        ({"user_id": ["a", "x" * 9000]}, r"row 2, column 'user_id': .*, got 9000 bytes"),
        ({"user_id": [0.5, 1.5]}, r"--key: expected a column of texts or whole numbers"),
        ({"age": [1, None]}, r"row 2, column 'age': expected a value, got null; give the column a default"),
        ({"age": [1, 2.5]}, r"row 2, column 'age': expected a whole number of int64, got 2.5"),
        ({"age": ["1", "old"]}, r"row 2, column 'age': expected a whole number of int64, got 'old'"),
        ({"age": [[1], [2]]}, r"column 'age': expected a whole number of int64, got list"),
        (
            {"score": [1, float("inf")]},
            r"row 2, column 'score': expected a finite number of float32, got inf",
        ),
        ({"score": [1, 1e300]}, r"row 2, column 'score': expected a finite number of float32, got 1e\+300"),
        (
            {"country": ["a", "ä" * 5]},
            r"row 2, column 'country': expected a text of up to 8 bytes .*, got 10",
        ),
        ({"country": ["a", "b\0"]}, r"row 2, column 'country': expected a text that does not end with NUL"),
        ({"country": [0.5, 1]}, r"column 'country': expected texts, got double"),
    ],
)
def test_invalid_values_are_named_by_row_and_column(
    archive: Archive, tmp_path: Path, rows: dict[str, list[object]], problem: str
) -> None:
    good = {"user_id": ["a", "b"], "age": [1, 2], "country": ["CH", "AT"], "score": [1.0, 2.0]}
    file = written(tmp_path / "users.parquet", pa.table(good | rows))
    with pytest.raises(InvalidRequest, match=problem):
        load_table(archive, "users", file)


def test_a_row_is_counted_over_all_batches(archive: Archive, tmp_path: Path) -> None:
    ages = [str(row) for row in range(20_000)]
    ages[12_345] = "old"
    file = written(tmp_path / "users.parquet", USERS.set_column(1, "age", pa.array(ages)))
    with pytest.raises(InvalidRequest, match="row 12346, column 'age'"):
        load_table(archive, "users", file)
    assert archive.lookup("users", ["u0"]).found.all()  # what came before is stored


@pytest.mark.parametrize(
    ("vectors", "problem"),
    [
        ([[1.0, 2, 3], None], r"row 2, column 'v': expected 3 numbers, got null"),
        ([[1.0, 2, 3], [1.0]], r"row 2, column 'v': expected 3 numbers, got 1"),
        ([[1.0, 2, 3], [1.0, NAN, 0]], r"row 2, column 'v': expected finite numbers of float32"),
        ([[1.0, 2, 3], [1.0, None, 0]], r"row 2, column 'v': expected finite numbers of float32"),
        ([[1.0, 2, 3], [1.0, 1e300, 0]], r"row 2, column 'v': expected finite numbers of float32"),
        ([["a", "b", "c"], ["a", "b", "c"]], r"column 'v': expected lists of numbers, got lists of string"),
        ([1.0, 2.0], r"--vectors: expected one column of lists of numbers; there is none"),
    ],
)
def test_vectors_that_are_none_are_named(
    archive: Archive, tmp_path: Path, vectors: list[object], problem: str
) -> None:
    load = loader(
        archive, "texts", written(tmp_path / "v.parquet", pa.table({"id": ["a", "b"], "v": vectors}))
    )
    with pytest.raises(InvalidRequest, match=problem):
        load.run(load.vectors("", "", 0), lambda rows, share: None)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("u.csv", b"", "expected a first line that names the columns"),
        (
            "u.csv",
            b"user_id,age,country\na,1,CH\n",
            "column 'score': the file does not have it, and it has no de",
        ),
        ("u.csv", b"a,a\n1,2\n", "u.csv: expected each column once, got 'a' twice"),
        (
            "u.csv",
            b"user_id,age,score\na,1,2\nb,1\n",
            r"row 2 \(line 3\): Expected 3 columns, got 2: b,1; columns are split at",
        ),
        ("u.csv", b"user_id,age,score\na,1,2\n\xff,1,2\n", r"row 2 \(line 3\): .*invalid UTF8.*save it as"),
        ("u.parquet", b"user_id,age\n", "expected parquet, which cannot be read"),
        ("u.arrow", b"user_id,age\n", "expected arrow, which cannot be read"),
        ("users", b"", r"expected a name that ends with .parquet"),
    ],
)
def test_files_that_are_none_are_refused(
    archive: Archive, tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequest, match=problem):
        load_table(archive, "users", tmp_path / name)


def test_a_column_without_a_name_as_pandas_writes_its_index_is_left_out(
    archive: Archive, tmp_path: Path
) -> None:
    (tmp_path / "f.csv").write_text(",id,year\n0,a,1995\n")
    target = load_table(archive, "films", tmp_path / "f.csv")
    assert (target.key, target.left_out) == ("id", [])
    assert target.doubts[0].startswith("1 column has no name")
    assert archive.lookup("films", ["a"]).values()["year"].tolist() == [1995]


def test_a_wrong_delimiter_is_what_an_error_asks_for(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("id;year\na;1995\n")
    with pytest.raises(
        InvalidRequest,
        match=r"FILE: expected columns for a table besides the key 'id;year', got none; "
        r"if another character separates its columns, name it with --delimiter",
    ):
        load_table(archive, "films", tmp_path / "f.csv")


def test_a_file_without_rows_loads_none(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "u.csv").write_text("user_id,age,score\n")
    assert load_table(archive, "users", tmp_path / "u.csv").version.number == 1
    (tmp_path / "f.csv").write_text("id,year\n")
    with pytest.raises(InvalidRequest, match="FILE: expected rows, which define the columns"):
        load_table(archive, "films", tmp_path / "f.csv")
    assert archive.catalog.read("films").versions == ()


def test_missing_files_columns_and_spaces_are_errors(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no such file"):
        load_table(archive, "users", tmp_path / "none.csv")
    file = written(tmp_path / "users.parquet", USERS.slice(0, 5))
    with pytest.raises(InvalidRequest, match="--key: no column 'name' in the file; there are user_id, age"):
        load_table(archive, "users", file, "name")
    with pytest.raises(InvalidRequest, match="--vectors: no column 'v' in the file"):
        loader(archive, "texts", file).vectors("", "v", 0)
    with pytest.raises(HeadraceError, match="no space 'none'"):
        loader(archive, "none", file)


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (["age", "user_id"], "user_id"),
        (["name", "id", "key"], "key"),
        (["score", "name", "other"], "name"),
        (["films", "name"], "films"),
        (["name", "film_id"], "film_id"),
    ],
)
def test_the_key_column_is_found_by_its_name(
    archive: Archive, tmp_path: Path, names: list[str], key: str
) -> None:
    table = "users" if "user_id" in names else "films"
    rows = {name: [0.5] if name in ("score", "age") else ["a"] for name in names}
    file = written(
        tmp_path / "some.parquet", pa.table(rows | ({"age": [1], "score": [1]} if table == "users" else {}))
    )
    assert loader(archive, table, file).table("", "", lambda rows, share: None).key == key


def doubts_of(archive: Archive, file: Path, key: str = "") -> list[str]:
    return list(loader(archive, "films", file).table(key, "", lambda rows, share: None).doubts)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("id,n\n a, 1\n", "the spaces around values are removed"),
        ('id,n\n"a, b",1\n', ""),
        (",id,n\n0,a,1\n", "1 column has no name"),
        ("id,n\n1012.0,1\n", "a lookup finds '1012.0' only as it is written"),
        ("id,n\n1.23457E+11,1\n", "a lookup finds '1.23457E+11' only as it is written"),
        ("id,n\nNA,1\n", "a lookup finds 'NA' only as it is written"),
        ("id,n\na,007\n", "the column 'n': its values stay text, because '007'"),
        ("id,n\na,1\nb,NA\n", "the column 'n': 'NA' is treated as a missing number"),
        ("id,n\na,1.23457E+11\n", "the column 'n': '1.23457E+11' may be an id whose last digits"),
        ("id,n\n7,1\n8,2\n", ""),
    ],
)
def test_guesses_about_a_csv_file_are_reported(
    archive: Archive, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "films.csv").write_text(content)
    told = doubts_of(archive, tmp_path / "films.csv")
    assert [one for one in told if said in one] if said else not told


def test_the_index_of_a_data_frame_is_neither_key_nor_column(archive: Archive, tmp_path: Path) -> None:
    table = pa.table({"__index_level_0__": [5, 6], "film": ["a", "b"], "n": [1, 2]})
    target = loader(archive, "films", written(tmp_path / "films.parquet", table)).table(
        "", "", lambda rows, share: None
    )
    assert (target.key, [column.name for column in target.columns]) == ("film", ["n"])
    assert target.doubts == ["the row index of a data frame is left out: __index_level_0__"]


def test_decimals_without_a_fraction_are_whole_numbers(archive: Archive, tmp_path: Path) -> None:
    ids = pa.array([9007199254740993, 9007199254740992]).cast(pa.decimal128(38, 0))
    load_table(archive, "films", written(tmp_path / "films.parquet", pa.table({"id": ["a", "b"], "n": ids})))
    assert of(archive, "films", "a", "b")["n"] == [9007199254740993, 9007199254740992]


def test_cells_are_texts_where_the_table_has_texts(archive: Archive, tmp_path: Path) -> None:
    for content in ("id,zip\na,01234\n", "id,zip\nb,81234\n"):
        (tmp_path / "films.csv").write_text(content)
        load_table(archive, "films", tmp_path / "films.csv")
    assert of(archive, "films", "a", "b")["zip"] == [b"01234", b"81234"]
