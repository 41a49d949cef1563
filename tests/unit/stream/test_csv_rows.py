"""CSV as other programs write it: read as it is meant, or refused as what it is."""

from __future__ import annotations

import io

import pytest

from headrace.base.errors import ConfigError, HeadraceError, StreamError
from headrace.stream.csv_rows import CsvRows
from headrace.stream.text_lines import Lines, WholeRows

PLAIN = "user,ad,clicked\n" + "".join(f"u{row % 7},a{row % 5},{row % 2}\n" for row in range(300))
BOM = b"\xef\xbb\xbf"

Found = list[tuple[str, ...]]


def rows(content: bytes, delimiter: str = ",", columns: tuple[str, ...] = ()) -> tuple[CsvRows, Found]:
    made = CsvRows(Lines(io.BytesIO(content), WholeRows(delimiter)), delimiter, columns)
    found = [
        tuple(row) for batch in made for row in zip(*(one.to_pylist() for one in batch.columns), strict=True)
    ]
    return made, found


@pytest.mark.parametrize(
    "content",
    [
        PLAIN.encode(),
        BOM + PLAIN.encode(),
        BOM + PLAIN.replace("user,ad,clicked", '"user","ad","clicked"').encode(),
        PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.replace("\n", "\r").encode(),
        BOM + PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.replace("\nu1,", "\n\nu1,").encode() + b"\n\n",
        PLAIN.replace(",", ", ").encode(),
        PLAIN.replace(",", " ,\t").encode(),
    ],
    ids=["plain", "BOM", "BOM, quoted", "CRLF", "CR", "BOM, CRLF", "blank lines", "spaces", "tabs"],
)
def test_the_same_rows_are_read(content: bytes) -> None:
    made, found = rows(content)
    assert made.names == ["user", "ad", "clicked"]
    assert found == [(f"u{row % 7}", f"a{row % 5}", f"{row % 2}") for row in range(300)]


def test_a_byte_order_mark_is_no_part_of_the_first_cell_either() -> None:
    _, found = rows(BOM + b"u1,a\n", columns=("user", "ad"))
    assert found == [("u1", "a")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (PLAIN.encode("utf-16"), "expected UTF-8, got UTF-16 or UTF-32"),
        (PLAIN.encode("utf-16-le"), "expected UTF-8, got UTF-16 or UTF-32"),
        (PLAIN.encode("utf-32"), "expected UTF-8, got UTF-16 or UTF-32"),
        (PLAIN.replace("a1", "a\xe9").encode("latin-1"), "save it as UTF-8"),
        (PLAIN.replace("user,ad", "ad,ad").encode(), "each column once, got 'ad' twice"),
        (PLAIN.replace("user,", '"user\nid",').encode(), "a name contains a quotation mark or a line end"),
        (b'title,n\n"say \\"hi\\" now",1\n', "a backslash before it"),
        (b'title,n\nplain,0\n"5\\" disk",1\n', "a backslash before it"),
        (b'title,n\n"24 \\" screen",1\n', "a backslash before it"),
        (b'title,n\n"screen 24\\"",1\n"screen 27\\"",2\n', "a backslash before it"),
        (b'title,n\na, "1"\n', "got ' \"1\"'; remove the space"),
        (b'n,title\n1, "a, b"\n', "a quotation mark after a space does not open a quoted value"),
        ("titl\xe9,n\n1,2\n".encode("latin-1"), "got the byte 0xe9 in the first line; save it as UTF-8"),
        (b'n, "title"\n1,2\n', "expected a quotation mark right after the delimiter"),
        (b"a" * 200_000 + b"\n1\n", "expected a first line that names the columns"),
        (b"a,b\n1,2,3\n", "columns are split at the delimiter ','"),
    ],
)
def test_trouble_is_named_as_what_it_is(content: bytes, said: str) -> None:
    with pytest.raises(HeadraceError, match=said):
        rows(content)


def test_a_backslash_at_the_end_of_a_value_is_a_backslash() -> None:
    _, found = rows(b'path,n\n"C:\\",1\n"a\\""b",2\n')
    assert found == [("C:\\", "1"), ('a\\"b', "2")]


def test_doubled_quotation_marks_may_follow_a_backslash() -> None:
    content = b'data,n\n"{""say"": ""\\""hi\\"", he""}",1\n'
    assert rows(content)[1] == [('{"say": "\\"hi\\", he"}', "1")]


def test_spaces_within_values_stay() -> None:
    made, found = rows(b"title,n\na b c,1\n")
    assert (found, made.has_spaces) == ([("a b c", "1")], False)
    made, found = rows(b"title,n\n a b , 1\n")
    assert (found, made.has_spaces) == ([("a b", "1")], True)


def test_quoted_values_with_spaces_within_are_not_told() -> None:
    made, found = rows(b'title,n\n"Hello, ""big"" world",1\n')
    assert (found, made.has_spaces) == ([('Hello, "big" world', "1")], False)


def test_blank_lines_before_the_names_are_skipped() -> None:
    assert rows(b"\n\r\na,b\n1,2\n")[1] == [("1", "2")]


def test_columns_may_lack_a_name() -> None:
    made, found = rows(b",ad,\n0,a,\n1,b,\n")
    assert (made.names, made.nameless, found) == (["ad"], 2, [("a",), ("b",)])


@pytest.mark.parametrize(
    "before",
    ['a,b\n"x\ny",1\n', "a,b\n\nx,1\n\n", "a,b\rx,1\r", "a,b\r\nx,1\r\n"],
    ids=["line end in a cell", "blank lines", "CR", "CRLF"],
)
@pytest.mark.parametrize("row", ['z,"q \\" r"\n', '\\"z,2\n'], ids=["quoted", "plain"])
def test_a_backslash_before_a_quotation_mark_is_found_in_its_row(before: str, row: str) -> None:
    with pytest.raises(StreamError, match="a backslash before it") as caught:
        rows((before + row.replace("\n", before[-1])).encode())
    assert caught.value.row == 1


def test_a_name_may_have_quotation_marks() -> None:
    made, found = rows(b'"""x""",n\n1,2\n')
    assert (made.names, found) == (['"x"', "n"], [("1", "2")])
    with pytest.raises(ConfigError, match="got ' \"x\"'"):
        rows(b'n, "x"\n1,2\n')
