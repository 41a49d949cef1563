"""Tables and the line that is renewed, for people."""

from __future__ import annotations

import io

import pytest

from headrace.base.terminal import Line, size, table
from tests.virtual_clock import VirtualClock


def test_columns_are_aligned_and_lines_have_no_blanks_at_their_ends() -> None:
    rows = [("name", "rows", ""), ("a", "1,000", "best"), ("longer", "7", "")]
    assert table(rows, right=(1,), indent="  ") == "\n".join(
        ["  name     rows", "  a       1,000  best", "  longer      7"]
    )
    assert table([]) == ""


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_000_000, "1.0 MB"), (2e9, "2,000.0 MB")],
)
def test_sizes_have_units_that_tell_small_files_apart(count: int, shown: str) -> None:
    assert size(count) == shown


def test_wide_letters_and_marks_take_the_places_that_they_take() -> None:
    lines = table([("日本", "x"), ("abcd", "x"), ("e\N{COMBINING ACUTE ACCENT}", "x")]).splitlines()
    assert lines == ["日本  x", "abcd  x", "e\N{COMBINING ACUTE ACCENT}     x"]


@pytest.mark.parametrize("hostile", ["a\x1b[2Jb", "a\rb", "a\nb", "a\x07b"])
def test_a_value_cannot_move_the_cursor(hostile: str) -> None:
    shown = table([(hostile, "x")])
    assert shown.isprintable()
    assert shown.startswith("a�")


def test_a_line_is_renewed_a_few_times_a_second_and_wiped_away() -> None:
    clock, out = VirtualClock(), io.StringIO()
    line = Line(out, clock.now, shown=True)
    assert line.due
    line.show("12345")
    assert not line.due
    clock.advance(1.0)
    assert line.due
    line.show("123")
    line.clear()
    line.clear()
    assert out.getvalue() == "\r12345\r123  \r   \r"


def test_nothing_is_drawn_outside_a_terminal() -> None:
    out = io.StringIO()
    line = Line(out)
    assert not line.due
    line.show("text")
    line.clear()
    assert out.getvalue() == ""


def test_a_terminal_that_has_gone_ends_no_work() -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    line = Line(Gone(), shown=True)
    line.show("text")
    line.clear()
