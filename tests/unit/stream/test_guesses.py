"""What encode makes of files whose columns nobody has described, and what it says of that."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.errors import ConfigError, StreamError
from headrace.cli.main import main
from headrace.stream.encode import Encoded, EncodeSettings, Format, encode
from headrace.stream.schema import Field, Schema, Unit
from headrace.stream.schema_inference import Hints

ROWS = 600
WORK = ("Private", "State-gov")


def encoded(path: Path, content: str, **hints: object) -> tuple[Encoded, pa.Table]:
    path.write_text(content, "utf-8")
    return read(path, "csv", **hints)


def read(path: Path, kind: Format, **hints: object) -> tuple[Encoded, pa.Table]:
    made = encode(EncodeSettings(format=kind, hints=Hints(label="clicked", **hints)), path)  # type: ignore[arg-type]
    return made, pa.Table.from_batches(list(made.batches), made.arrow_schema)


def column(cell: Callable[[int], object]) -> str:
    """A file with one column of cells and a label."""
    return "x,clicked\n" + "".join(f"{cell(row)},{row % 2}\n" for row in range(ROWS))


@pytest.mark.parametrize(
    ("cell", "role", "text", "said"),
    [
        (lambda row: row % 7, "categorical", False, ""),
        (
            lambda row: ("NA", "DE", "FR")[row % 3],
            "categorical",
            True,
            "'NA' is treated as ordinary text",
        ),
        (lambda row: f"{1000 + row % 50}.0", "categorical", False, "treated as integers"),
        (lambda row: "" if row % 10 == 0 else f"{1000 + row % 50}.0", "categorical", False, "integers"),
        (lambda row: f"{row % 40:05}", "categorical", True, "'00000' would change if read as a number"),
        (lambda row: f"+49301{row % 40}", "categorical", True, "would change if read as a number"),
        (lambda row: f"1234567890123456{row % 40:04}", "categorical", True, "would change if read"),
        (lambda row: f"{row % 9}E5", "categorical", True, "would change if read as a number"),
        (lambda row: f"{row / 7:.6f}", "dense", False, ""),
        (
            lambda row: "NA" if row % 9 == 0 else f"{row / 7:.6f}",
            "dense",
            False,
            "missing number, in 67 rows",
        ),
        (lambda row: f" {row / 7:.6f}", "dense", False, ""),
        (lambda row: f"{row / 7e9:.6e}", "dense", False, ""),
        (lambda row: f"{row / 7:.9f}E5", "dense", False, ""),
        (lambda row: "?" if row % 20 == 1 else f"{row % 40}", "categorical", True, "570 of 600 values are"),
    ],
)
def test_a_column_is_what_a_request_means_by_it(
    tmp_path: Path, cell: Callable[[int], object], role: str, text: bool, said: str
) -> None:
    made, _ = encoded(tmp_path / "rows.csv", column(cell))
    field = made.schema.by_name["x"]
    assert (field.role, field.text) == (role, text)
    told = [one for one in made.doubts if "column 'x'" in one]
    assert any(said in one for one in told) if said else not told
    if said:
        assert "; to change it, set role = " in told[0]


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    _, table = encoded(tmp_path / "a.csv", column(lambda row: ("NA", "007", " x ", "")[row % 4]))
    assert table.column("x").to_pylist()[:4] == ["NA", "007", "x", None]
    _, table = encoded(tmp_path / "b.csv", column(lambda row: ("7.0", "12.0", "")[row % 3]))
    assert table.column("x").to_pylist()[:3] == [7, 12, None]


def test_spaces_around_values_change_nothing_and_are_told(tmp_path: Path) -> None:
    draw = random.Random(1)
    tight = "work,score,hours,clicked\n" + "".join(
        f"{draw.choice(WORK)},{draw.uniform(0, 9):.3f},{draw.randrange(1, 40)},{row % 2}\n"
        for row in range(ROWS)
    )
    plain, table = encoded(tmp_path / "tight.csv", tight)
    assert not plain.doubts
    for loose in (tight.replace(",", ", "), tight.replace(",", " ,"), tight.replace("\n", " \n")):
        made, found = encoded(tmp_path / "loose.csv", loose)
        assert (made.schema, found) == (plain.schema, table)
        assert made.doubts == ("the spaces around values are removed",)


def test_a_column_without_a_name_is_ignored_and_told(tmp_path: Path) -> None:
    content = ",ad,clicked\n" + "".join(f"{row},a{row % 5},{row % 2}\n" for row in range(ROWS))
    made, _ = encoded(tmp_path / "rows.csv", content)
    assert [field.name for field in made.schema.fields] == ["ad", "clicked"]
    assert made.doubts[0].startswith("1 column has no name")


def test_delimiters_at_the_end_of_lines_are_columns_without_names(tmp_path: Path) -> None:
    content = "ad,clicked,,\n" + "".join(f"a{row % 5},{row % 2},,\n" for row in range(ROWS))
    made, table = encoded(tmp_path / "rows.csv", content)
    assert table.column_names == ["ad", "clicked"]
    assert made.doubts[0].startswith("2 columns have no name")


def test_whole_numbers_that_become_quantities_are_told(tmp_path: Path) -> None:
    made, _ = encoded(tmp_path / "rows.csv", column(lambda row: 70_000 + row))
    assert made.schema.by_name["x"].role == "dense"
    assert "hardly ever repeat, so they are treated as a quantity" in made.doubts[0]
    table = pa.table({"x": [float(row % 9) for row in range(ROWS)], "clicked": [0, 1] * 300})
    pq.write_table(table, tmp_path / "rows.parquet")
    made, _ = read(tmp_path / "rows.parquet", "parquet")
    assert made.schema.by_name["x"].role == "dense"
    assert "whole numbers that are stored as floats" in made.doubts[0]


def test_texts_of_parquet_stay_texts(tmp_path: Path) -> None:
    table = pa.table({"x": [str(row % 9) for row in range(ROWS)], "clicked": [0, 1] * 300})
    pq.write_table(table, tmp_path / "rows.parquet")
    made, found = read(tmp_path / "rows.parquet", "parquet")
    assert (made.schema.by_name["x"].text, made.doubts) == (True, ())
    assert found.column("x").to_pylist()[:2] == ["0", "1"]


def test_decimals_without_a_fraction_are_integers(tmp_path: Path) -> None:
    ids = pa.array([10**9 + row % 5 for row in range(ROWS)]).cast(pa.decimal128(38, 0))
    pq.write_table(pa.table({"x": ids, "clicked": [0, 1] * 300}), tmp_path / "rows.parquet")
    made, found = read(tmp_path / "rows.parquet", "parquet")
    assert made.schema.by_name["x"].role == "categorical"
    assert found.column("x").to_pylist()[:2] == [10**9, 10**9 + 1]


def test_decimals_that_int64_does_not_hold_are_texts(tmp_path: Path) -> None:
    ids = pa.array([Decimal(10**25 + row % 5) for row in range(ROWS)], pa.decimal128(38, 0))
    pq.write_table(pa.table({"x": ids, "clicked": [0, 1] * 300}), tmp_path / "rows.parquet")
    made, found = read(tmp_path / "rows.parquet", "parquet")
    assert "more digits than int64 holds" in made.doubts[0]
    assert found.column("x").to_pylist()[0] == str(10**25)


@pytest.mark.parametrize("kind", ["plain", "list", "dictionary"])
def test_views_of_texts_are_texts(tmp_path: Path, kind: str) -> None:
    texts = pa.array([f"a rather long text {row % 4}" for row in range(ROWS)], pa.string_view())
    if kind == "list":
        texts = pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), texts)
    if kind == "dictionary":
        texts = pa.DictionaryArray.from_arrays(pa.array([row % 4 for row in range(ROWS)]), texts[:4])
    table = pa.table({"x": texts, "clicked": [0, 1] * 300})
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    made, found = read(tmp_path / "rows.arrow", "arrow")
    assert made.schema.by_name["x"].text
    assert found.column("x").to_pylist()[5] in ("a rather long text 1", ["a rather long text 1"])


@pytest.mark.parametrize(
    ("values", "way_out"),
    [
        ([{"a": 1}], '"categorical"'),
        ([[1], [2]], '"categorical"'),
        ([], '"categorical"'),
        ([1.5, 2.0], '"vector" and its size'),
    ],
    ids=["structs", "lists", "nothing", "floats"],
)
def test_lists_of_anything_but_categories_are_ignored_and_told(
    tmp_path: Path, values: list[object], way_out: str
) -> None:
    table = pa.table({"x": [values, None] * 300, "u": [["a"], ["b"]] * 300, "clicked": [0, 1] * 300})
    pq.write_table(table, tmp_path / "rows.parquet")
    made, found = read(tmp_path / "rows.parquet", "parquet")
    assert {one.name: one.role for one in made.schema.fields} == {
        "x": "ignored",
        "u": "categorical",
        "clicked": "label",
    }
    (doubt,) = made.doubts
    assert "the column 'x' is ignored: its values are list<" in doubt
    assert f"set role = {way_out}" in doubt
    assert found.num_rows == ROWS


def test_nan_is_a_missing_category(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1012.0, float("nan")], "clicked": [0, 1]}), tmp_path / "rows.parquet")
    fields = (Field(name="clicked", role="label"), Field(name="x", role="categorical"))
    settings = EncodeSettings(format="parquet", schema=Schema(fields=fields))
    made = encode(settings, tmp_path / "rows.parquet")
    assert pa.Table.from_batches(list(made.batches)).column("x").to_pylist() == [1012, None]


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "by its name"])
def test_the_index_of_a_data_frame_is_ignored_and_told(tmp_path: Path, noted: bool) -> None:
    name = "row" if noted else "__index_level_0__"
    table = pa.table({"ad": ["a", "b"] * 300, "clicked": [0, 1] * 300, name: range(ROWS)})
    if noted:
        told = {"index_columns": [name], "columns": []}
        table = table.replace_schema_metadata({b"pandas": json.dumps(told).encode()})
    pq.write_table(table, tmp_path / "rows.parquet")
    made, _ = read(tmp_path / "rows.parquet", "parquet")
    assert made.schema.by_name[name].role == "ignored"
    assert "row index of a data frame" in made.doubts[0]


SECONDS = 1_700_000_000


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1000), ("ns", 10**9)])
def test_times_in_another_unit_are_refused_unless_it_is_named(
    tmp_path: Path, unit: Unit, factor: int
) -> None:
    content = "at,ad,clicked\n" + "".join(
        f"{(SECONDS + row) * factor},a{row % 5},{row % 2}\n" for row in range(ROWS)
    )
    with pytest.raises(StreamError, match=f"a time, from 1990 to 2100.*--timestamp-unit {unit}"):
        encoded(tmp_path / "rows.csv", content, timestamp="at")
    made, table = encoded(tmp_path / "rows.csv", content, timestamp="at", timestamp_unit=unit)
    assert table.column("at").cast(pa.int64()).to_pylist()[:2] == [SECONDS * 10**6, (SECONDS + 1) * 10**6]
    assert made.schema.by_name["at"].unit == unit


def test_the_unit_of_times_is_named_as_expected(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="expected seconds since 1970, or a time"):
        encoded(tmp_path / "rows.csv", "at,clicked\nsoon,1\n", timestamp="at", timestamp_unit="s")


@pytest.mark.parametrize(("unit", "time"), [("s", 2**60), ("ms", -(2**62))])
def test_times_beyond_int64_are_refused(tmp_path: Path, unit: Unit, time: int) -> None:
    with pytest.raises(StreamError, match="that fit into int64 as microseconds"):
        encoded(tmp_path / "rows.csv", f"at,clicked\n{time},1\n", timestamp="at", timestamp_unit=unit)


MANY = 500_000


@pytest.mark.parametrize("cell", ["007", "1E5", "+49301234", "12345678901234567890"])
def test_a_later_row_that_contradicts_a_quantity_is_refused(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x,clicked\n" + "".join(f"{row % 7}.5,1\n" for row in range(MANY)) + f"{cell},1\n")
    made = encode(EncodeSettings(format="csv", hints=Hints(label="clicked")), path)
    with pytest.raises(StreamError, match=f"row {MANY}, field 'x': expected a number, as in earlier rows"):
        list(made.batches)


def test_a_word_in_a_later_row_is_told_once(tmp_path: Path) -> None:
    path, told = tmp_path / "rows.csv", list[str]()
    path.write_text("x,clicked\n" + "".join(f"{row % 7}.5,1\n" for row in range(MANY)) + "NA,1\nNA,0\n")
    settings = EncodeSettings(format="csv", hints=Hints(label="clicked"), tell=told.append)
    assert sum(batch.num_rows for batch in encode(settings, path).batches) == MANY + 2
    assert told == [f"row {MANY}, column 'x': 'NA' is treated as a missing number"]


def test_the_sample_has_a_limit_in_bytes(tmp_path: Path) -> None:
    text = "x" * 20_000
    path = tmp_path / "rows.csv"
    path.write_text("x,clicked\n" + f"{text},1\n" * 5_000 + "short,0\n" * 10)
    made = encode(EncodeSettings(format="csv", hints=Hints(label="clicked")), path)
    assert made.guessed_rows is None
    assert sum(batch.num_rows for batch in made.batches) == 5_010


def test_a_unit_wins_over_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"at,clicked\n{SECONDS},1\n")
    fields = (Field(name="at", role="timestamp"), Field(name="clicked", role="label"))
    settings = EncodeSettings(format="csv", schema=Schema(fields=fields), hints=Hints(timestamp_unit="s"))
    made = encode(settings, path)
    table = pa.Table.from_batches(list(made.batches), made.arrow_schema)
    assert table.column("at").cast(pa.int64()).to_pylist() == [SECONDS * 10**6]


@pytest.mark.parametrize("delimiter", ["", ";;", "\u00a7"])
def test_a_delimiter_is_one_ascii_character(delimiter: str) -> None:
    with pytest.raises(ConfigError, match="delimiter: expected one ASCII character"):
        EncodeSettings(format="csv", delimiter=delimiter)


def test_with_a_schema_nothing_is_guessed_and_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(",x,clicked\n0, 007,1\n")
    fields = (Field(name="x", role="dense"), Field(name="clicked", role="label"))
    made = encode(EncodeSettings(format="csv", schema=Schema(fields=fields)), path)
    assert made.doubts == ()
    assert next(iter(made.batches)).column("x").to_pylist() == [7.0]


def test_a_unit_needs_a_column_of_times(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name it with --timestamp"):
        encoded(tmp_path / "rows.csv", "x,clicked\n1,1\n", timestamp_unit="s")


def test_a_later_row_that_no_number_is_written_as_is_refused(tmp_path: Path) -> None:
    fields = (Field(name="clicked", role="label"), Field(name="x", role="categorical"))
    path = tmp_path / "rows.csv"
    path.write_text("x,clicked\n7,1\n007,0\n")
    made = encode(EncodeSettings(format="csv", schema=Schema(fields=fields)), path)
    with pytest.raises(StreamError, match=r"row 1, field 'x': expected an integer, got '007'.*text = true"):
        list(made.batches)


def test_strict_makes_doubts_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(column(lambda row: f"{row % 40:05}"))
    words = ["stream", "encode", "--format", "csv", str(path), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert main([*words, "--strict"]) == 2
    assert "would change if read as a number" in capsys.readouterr().err
