"""CSV as other programs write it: read as it is meant, or refused as what it is; lines come in pieces."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ConfigError, HeadraceError, StreamError
from headrace.stream.text_files import (
    MOST_LINE_BYTES,
    PIECE_BYTES,
    CsvRows,
    Lines,
    Whole,
    WholeLines,
    WholeRows,
)

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


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", 0),
        ("a,b", 0),
        ("a\nb", 2),
        ("a\r\nb\r", 3),
        ("a\rb\r", 2),
        ('1,"a\rb', 0),
        ('0\r1,"a\rb', 2),
        ('1,"a\rb"\r2', 8),
        ('a,"b\nc', 0),
        ('1\na,"b\nc', 2),
        ('1\na,"b\nc"\nd', 10),
        ('1\na,"b ""\n"" c', 2),
        ('"a\n""\n",2\n3', 10),
        ('5" pipe\n6" pi', 8),
        ('a,5" pipe,"x\ny"\n"1\n2', 16),
        ('a,"x\n" y"\n"1\n2', 10),
    ],
)
def test_a_row_is_whole_with_all_lines_of_its_quoted_cells(text: str, whole: int) -> None:
    assert WholeRows(",")(bytearray(text.encode())) == whole


@given(st.lists(st.sampled_from(['"', '""', "a", ",", "\n", "\r", "\r\n", "é"]), max_size=40), st.data())
def test_a_text_that_grows_has_the_rows_that_it_has_at_once(units: list[str], data: st.DataObject) -> None:
    text = "".join(units).encode().replace(b"\r", b"\r\n")  # with \r alone, rows end where none ends with \n
    growing, taken, rows = bytearray(), 0, WholeRows(",")
    while len(growing) + taken < len(text):
        came = len(growing) + taken
        growing += text[came : came + data.draw(st.integers(1, 9))]
        count = rows(growing)
        assert taken + count == WholeRows(",")(bytearray(text[: taken + len(growing)]))
        del growing[:count]
        taken += count


class Watched(bytearray):
    """A text that counts how many of its bytes are looked at."""

    looked_at = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.looked_at += len(found) if isinstance(key, slice) else 1
        return found

    def rfind(self, sub: Any, start: Any = 0, end: Any = None, /) -> int:
        found = super().rfind(sub, start, end)
        first, last, _ = slice(start, end).indices(len(self))
        self.looked_at += max(0, last - max(first, found))
        return found


@pytest.mark.exact
@pytest.mark.parametrize(
    ("whole", "start", "unit"),
    [
        (lambda: WholeRows(","), b'1,"', b'"",z\n'),
        (lambda: WholeRows(","), b'1,"', b'""'),
        (lambda: WholeRows(","), b"1,", b'5" pipe'),
        (WholeLines, b"1 ", b"x:1 "),
    ],
)
def test_bytes_of_an_incomplete_row_are_scanned_once(
    whole: Callable[[], Whole], start: bytes, unit: bytes
) -> None:
    """A cell that was never closed was looked at anew each time that more of it came."""
    counted, text = whole(), Watched(start)
    while len(text) < 1_000_000:
        text += unit * (16_384 // len(unit))
        assert not counted(text)
    assert len(text) - len(start) <= text.looked_at < 2.1 * len(text)


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, int]]:
    """The end that is read, and the descriptor to write to."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as file:
        yield file, writing  # type: ignore[misc]
    os.close(writing)


def test_a_live_source_gives_its_lines_without_waiting_for_more(pipe: tuple[BinaryIO, int]) -> None:
    file, writing = pipe
    os.write(writing, b"name\n1\n2\n3")
    lines = Lines(file, WholeLines())
    assert lines.first() == b"name\n"
    pieces = iter(lines)
    assert not lines.live
    assert next(pieces) == b"1\n2\n"
    assert lines.live
    os.write(writing, b"4\n5\n")
    assert next(pieces) == b"34\n5\n"
    lines.source.close()


def test_a_file_is_given_in_large_pieces_of_whole_lines() -> None:
    text = b"".join(b"%d\n" % number for number in range(400_000))
    lines = Lines(io.BytesIO(text), WholeLines())
    pieces = list(lines)
    assert b"".join(pieces) == text
    assert [len(piece) > PIECE_BYTES - 10 for piece in pieces] == [True, True, False]
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert not lines.live


@pytest.mark.parametrize("text", [b"x" * (MOST_LINE_BYTES + 1), b'"' + b"x\n" * (MOST_LINE_BYTES // 2 + 1)])
def test_a_line_that_never_ends_is_refused_with_the_limit(text: bytes) -> None:
    with pytest.raises(
        StreamError, match=f"longer than the maximum of {MOST_LINE_BYTES} bytes.* never closed"
    ):
        list(Lines(io.BytesIO(text), WholeRows(",")))
