"""Lines come in whole pieces: large ones of a file, and of a live source what is there by now."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import StreamError
from headrace.stream.text_lines import MOST_LINE_BYTES, PIECE_BYTES, Lines, Whole, WholeLines, WholeRows


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
def test_what_is_no_whole_row_is_looked_at_once(
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


def test_what_a_live_source_has_is_given_without_what_comes_next(pipe: tuple[BinaryIO, int]) -> None:
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
