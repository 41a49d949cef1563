"""Numbers of formats."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigError, NewerFormat
from headrace.base.format_numbers import check_format, check_number


@pytest.mark.parametrize("content", [b'{"format": 2}', b"{}", b'{"format": 0}', b'{"format": 1, "new": []}'])
def test_known_formats_are_accepted(content: bytes) -> None:
    check_format(content, 2, "file")


@pytest.mark.parametrize("content", [b'{"format": 3}', b'{"new": {"format": 1}, "format": 3, "files": 7}'])
def test_a_newer_format_is_refused_whatever_else_the_file_holds(content: bytes) -> None:
    with pytest.raises(NewerFormat, match=r"^file: format 3 is newer than 2; update headrace$"):
        check_format(content, 2, "file")
    with pytest.raises(ConfigError, match=r"^file: format 3"):
        check_format(content, 2, "file", ConfigError)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[3]", b'{"format": "3"}', b'{"format": 3.5}', b"\xff", b"[" * 100_000]
)
def test_content_without_a_format_number_is_left_to_the_caller(content: bytes) -> None:
    check_format(content, 2, "file")


@pytest.mark.parametrize("found", [None, "3", 2, 3.5, -1, [3]])
def test_values_that_are_not_larger_numbers_are_left_to_the_caller(found: object) -> None:
    check_number(found, 2, "file")


def test_a_larger_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^keys: format 3 is newer than 2; update headrace$"):
        check_number(3, 2, "keys", ConfigError)
