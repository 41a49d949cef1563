"""Other formats become streams that say the same; what is wrong is said with its row and column."""

from __future__ import annotations

import datetime
import gzip
import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.errors import ConfigError, StreamError
from headrace.stream.arrow_ipc_parser import StreamParser
from headrace.stream.block import Features
from headrace.stream.block_joining import Joiner
from headrace.stream.encode import EncodeSettings, Format, encode
from headrace.stream.schema import Field, Schema, parse_schema
from headrace.stream.schema_inference import Hints, infer_schema, read_cells, schema_toml
from headrace.stream.stream_io import write_stream

CSV = """clicked,when,user,price,tags,title
1,2026-01-01 00:00:00,7,1.5,a|b,foo
0,2026-01-01 00:00:01,8,,c,"bar, baz"
true,2026-01-01T00:00:02,7,-2.5,,foo
"""
HINTS = Hints(label="clicked", timestamp="when", separator="|", context=("user",))

Run = Callable[..., list[dict[str, object]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Encodes text, and gives the stream's rows, read as the learner would."""

    def encoded(content: str | bytes, name: Format = "csv", **settings: object) -> list[dict[str, object]]:
        path = tmp_path / f"rows.{name}"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read(path, EncodeSettings(format=name, **settings))  # type: ignore[arg-type]

    return encoded


def read(path: Path, settings: EncodeSettings) -> list[dict[str, object]]:
    made = encode(settings, path)
    written = io.BytesIO()
    write_stream(written, made.arrow_schema, made.batches, lambda rows: None)
    parser = StreamParser()
    batches = parser.feed(written.getvalue())
    parser.finish()
    assert parser.schema == made.schema
    joiner = Joiner(Features.of(made.schema))
    for batch in batches:
        joiner.join(batch)
    return pa.Table.from_batches(batches).to_pylist()


def test_csv_becomes_the_rows_that_it_says(run: Run) -> None:
    first, second, third = run(CSV, hints=HINTS)
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert first == {
        "clicked": 1,
        "when": start,
        "user": 7,
        "price": 1.5,
        "tags": ["a", "b"],
        "title": "foo",
    }
    assert (second["price"], second["title"], second["tags"]) == (None, "bar, baz", ["c"])
    assert (third["clicked"], third["tags"], third["when"]) == (1, None, start.replace(second=2))


def test_the_guessed_schema_can_be_given_back(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text(CSV)
    guessed = encode(EncodeSettings(format="csv", hints=HINTS), path).schema
    given = parse_schema(schema_toml(guessed))
    assert given == guessed
    assert run(CSV, schema=given, hints=HINTS) == run(CSV, hints=HINTS)


def test_compressed_csv_without_names_and_with_tabs(tmp_path: Path) -> None:
    path = tmp_path / "day_0.tsv.gz"
    path.write_bytes(gzip.compress(b"1\t5\tab\n0\t\t\n"))
    settings = EncodeSettings(format="csv", delimiter="\t", columns=("label", "i1", "c1"))
    assert read(path, settings) == [{"label": 1, "i1": 5, "c1": "ab"}, {"label": 0, "i1": None, "c1": None}]


def test_more_rows_than_are_looked_at_keep_their_order(run: Run) -> None:
    lines = "".join(f"{row % 2},{row % 97}\n" for row in range(120_000))
    rows = run(f"label,user\n{lines}")
    assert [row["user"] for row in rows] == [row % 97 for row in range(120_000)]


SCHEMA = Schema(
    fields=(
        Field(name="label", role="label"),
        Field(name="w", role="weight"),
        Field(name="d", role="dense"),
        Field(name="c", role="categorical"),
        Field(name="b", role="categorical", keys="bucket", buckets=10),
        Field(name="bs", role="categorical", keys="bucket", buckets=10, values=3),
        Field(name="v", role="vector", size=2),
        Field(name="t", role="timestamp"),
    )
)
GOOD = {"label": "0", "w": "1", "d": "2", "c": "3", "b": "4", "bs": "5|6", "v": "7|8", "t": "9"}

WRONG = {
    "a label that is no label": ("label", "2", "0 or 1"),
    "a label that is missing": ("label", "", "0 or 1"),
    "a label that is text": ("label", "maybe", "0 or 1"),
    "a negative weight": ("w", "-1", "0 or more"),
    "a number that is text": ("d", "cheap", "a number"),
    "a number that is infinite": ("d", "inf", "finite"),
    "a number that float32 cannot hold": ("d", "1e39", "finite"),
    "text where integers are hashed": ("c", "x7", "an integer"),
    "a row that the table has not": ("b", "10", "0 to 9"),
    "a negative row": ("b", "-1", "an integer"),
    "one of several rows that the table has not": ("bs", "1|10", "0 to 9"),
    "a vector that is too short": ("v", "1", "2 numbers"),
    "a vector of text": ("v", "1|x", "numbers"),
    "a time that is none": ("t", "noon", "microseconds"),
    "a time that is missing": ("t", "", "microseconds"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_value_is_named_with_row_and_field(run: Run, fault: str) -> None:
    field, value, expected = WRONG[fault]
    lines = [",".join(GOOD), *(",".join((GOOD | {field: bad}).values()) for bad in (GOOD[field], value))]
    with pytest.raises(StreamError, match=expected) as caught:
        run("\n".join(lines), schema=SCHEMA, hints=Hints(separator="|"))
    assert (caught.value.row, caught.value.field) == (1, field)


def test_text_of_another_encoding_is_named(run: Run) -> None:
    with pytest.raises(StreamError, match="save it as UTF-8"):
        run(b"clicked,name\n1,a\n0,\xff\xfe\n", hints=Hints(label="clicked"))


def test_a_line_of_another_length_is_named(run: Run) -> None:
    with pytest.raises(StreamError, match="Expected 2 columns, got 3") as caught:
        run("label,a\n1,2\n0,3,4\n")
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("content", "settings", "said"),
    [
        ("", {}, "expected a first line"),
        ("label,a\n", {}, "no rows"),
        ("a,b\n1,2\n", {}, "--label"),
        ("a,b\n1,2\n", {"hints": Hints(label="c")}, "no column 'c'"),
        ("label,b\n1,2\n", {"schema": SCHEMA}, "the column 'w' is missing"),
    ],
    ids=["empty", "header only", "no label", "unknown label", "missing column"],
)
def test_a_file_that_does_not_fit_says_why(
    run: Run, content: str, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run(content, **settings)


@pytest.mark.parametrize("name", ["csv", "parquet", "vw", "arrow"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: Format) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.*no such file"):
        encode(EncodeSettings(format=name), tmp_path / "nowhere")


TYPED = pa.table(
    {
        "label": pa.array([True, False]),
        "user": pa.array([2**64 - 1, None], pa.uint64()),
        "site": pa.array(["a", "b"]).dictionary_encode(),
        "tags": pa.array([["x", "y"], None]),
        "spent": pa.array([1.5, None], pa.float64()),
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    }
)
TYPED_ROWS = [
    {"label": 1, "user": -1, "site": "a", "tags": ["x", "y"], "spent": 1.5, "vector": [1.0, 2.0]},
    {"label": 0, "user": None, "site": "b", "tags": None, "spent": None, "vector": [3.0, 4.0]},
]


def test_parquet_becomes_the_rows_that_it_says(tmp_path: Path) -> None:
    pq.write_table(TYPED, tmp_path / "clicks.parquet", row_group_size=1)
    assert read(tmp_path / "clicks.parquet", EncodeSettings(format="parquet")) == TYPED_ROWS


def test_an_arrow_file_becomes_the_rows_that_it_says(tmp_path: Path) -> None:
    with pa.ipc.new_file(str(tmp_path / "clicks.arrow"), TYPED.schema) as writer:
        writer.write_table(TYPED)
    assert read(tmp_path / "clicks.arrow", EncodeSettings(format="arrow")) == TYPED_ROWS


def test_a_damaged_arrow_file_is_refused(tmp_path: Path) -> None:
    path, texts = tmp_path / "clicks.arrow", ["first", "second"]
    with pa.ipc.new_file(str(path), pa.schema({"label": pa.int8(), "a": pa.string()})) as writer:
        writer.write_batch(pa.record_batch({"label": pa.array([0, 1], pa.int8()), "a": texts}))
    ends = np.array([0, 5, 11], np.int32).tobytes()
    whole = path.read_bytes()
    assert whole.count(ends) == 1
    path.write_bytes(whole.replace(ends, np.array([0, 5, 2**30], np.int32).tobytes()))
    with pytest.raises(ConfigError, match=r"clicks\.arrow: .*offset"):
        read(path, EncodeSettings(format="arrow"))


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_a_file_of_another_format_is_refused(run: Run, name: Format) -> None:
    with pytest.raises(ConfigError, match="rows"):
        run("label,a\n1,2\n", name)


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_formats_read_from_their_end_need_a_file(name: Format) -> None:
    with pytest.raises(ConfigError, match="name a file"):
        encode(EncodeSettings(format=name), Path("-"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            [f"site{row % 50}" for row in range(1000)],
            Field(name="x", role="categorical", text=True, buckets=256),
        ),
        ([f"title {row}" for row in range(1000)], Field(name="x", role="ignored")),
        ([str(row % 300) for row in range(20_000)], Field(name="x", role="categorical", buckets=2048)),
        ([str(row * 0.1) for row in range(1000)], Field(name="x", role="dense")),
        ([str(row) for row in range(1000)], Field(name="x", role="dense")),
        ([str(10**12 + row) for row in range(1000)], Field(name="x", role="ignored")),
        ([None] * 10, Field(name="x", role="categorical", text=True, buckets=256)),
        (
            ["a b", "c", "a b c"] * 100,
            Field(name="x", role="categorical", text=True, buckets=256, values=4, separator=" "),
        ),
    ],
    ids=["texts", "titles", "integers", "decimals", "counts", "identifiers", "nothing", "several"],
)
def test_a_column_is_guessed_from_its_values(values: list[str | None], expected: Field) -> None:
    sample = pa.record_batch({"label": ["0"] * len(values), "x": pa.array(values, pa.string())})
    guessed = infer_schema(sample, Hints(separator=" " if expected.values > 1 else ""), read_cells(sample))
    assert guessed.by_name["x"] == expected


def test_slices_of_lists_with_nothing_in_between_are_right(tmp_path: Path) -> None:
    """More rows than a batch, so that every later batch starts within the lists."""
    random = np.random.default_rng(1)
    lists = [None if size == 3 else [str(size)] * size for size in random.integers(0, 4, 20_000)]
    table = pa.table({"label": [0] * 20_000, "tags": pa.array(lists, pa.list_(pa.string()))})
    pq.write_table(table, tmp_path / "rows.parquet")
    rows = read(tmp_path / "rows.parquet", EncodeSettings(format="parquet"))
    assert [row["tags"] for row in rows] == lists


TAGS = (
    Field(name="label", role="label"),
    Field(name="tags", role="categorical", text=True, values=4),
    Field(name="v", role="vector", size=2),
)


@pytest.mark.parametrize(
    ("tags", "v", "option"),
    [("|", ";", ""), ("", "", "|"), ("x", "y", "|")],
    ids=["schema", "option", "both"],
)
def test_the_separator_comes_from_the_schema_unless_an_option_overrides_it(
    run: Run, tags: str, v: str, option: str
) -> None:
    schema = Schema(
        fields=(
            TAGS[0],
            msgspec.structs.replace(TAGS[1], separator=tags),
            msgspec.structs.replace(TAGS[2], separator=v),
        )
    )
    rows = f"label,tags,v\n1,a{option or tags}b,1{option or v}2\n0,,3{option or v}4\n"
    assert run(rows, schema=schema, hints=Hints(separator=option)) == [
        {"label": 1, "tags": ["a", "b"], "v": [1.0, 2.0]},
        {"label": 0, "tags": None, "v": [3.0, 4.0]},
    ]


@pytest.mark.parametrize(
    ("fields", "said"), [(TAGS[:2], "'tags' has values = 4"), (TAGS[::2], "'v' has size = 2")]
)
@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_nobody_saying_what_stands_between_values_is_an_error_with_the_way_out(
    tmp_path: Path, name: Format, fields: tuple[Field, ...], said: str
) -> None:
    path = tmp_path / "rows"
    path.write_text("label,tags,v\n1,a|b,1|2\n0,,3|4\n")
    if name == "parquet":
        pq.write_table(pa.table({"label": ["1"], "tags": ["a|b"], "v": ["1|2"]}), path)
    with pytest.raises(ConfigError, match=said + ".*separator = .*--values-separator"):
        encode(EncodeSettings(format=name, schema=Schema(fields=fields)), path)


def test_a_guessed_schema_says_its_separator(tmp_path: Path, run: Run) -> None:
    (tmp_path / "rows").write_text(CSV)
    guessed = encode(EncodeSettings(format="csv", hints=HINTS), tmp_path / "rows").schema
    assert guessed.by_name["tags"].separator == "|"
    assert run(CSV, schema=parse_schema(schema_toml(guessed))) == run(CSV, hints=HINTS)


@pytest.mark.parametrize("name", ["\N{GRINNING FACE}", 'a "quoted" \\ one', "\x7f", "with spaces"])
def test_a_schema_of_any_names_can_be_given_back(name: str) -> None:
    schema = Schema(
        fields=(Field(name="label", role="label"), Field(name=name, role="categorical", context=True))
    )
    assert parse_schema(schema_toml(schema)) == schema
