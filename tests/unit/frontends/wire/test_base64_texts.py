"""Base64 as common tools write it."""

from __future__ import annotations

import base64
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.frontends.wire.texts import decoded, decoding


@given(st.binary(max_size=200), st.integers(1, 50), st.booleans(), st.booleans(), st.integers(1, 300))
def test_lines_padding_and_the_alphabet_of_urls_change_nothing(
    content: bytes, width: int, padded: bool, for_urls: bool, step: int
) -> None:
    text = (base64.urlsafe_b64encode if for_urls else base64.b64encode)(content).decode()
    text = text if padded else text.rstrip("=")
    written = "\r\n".join(textwrap.wrap(text, width)) + "\n"
    assert decoded(written) == content
    assert b"".join(decoding(written, step)) == content


@pytest.mark.parametrize(
    "text", ["a", "QQ==QQ==", "QQ===", "Q===", "QQ=Q", "Q!==", "QQ=\u00e9", "====", "=QQQ"]
)
@pytest.mark.parametrize("step", [1, 3, 4, 100])
def test_what_is_no_base64_is_refused(text: str, step: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of binascii, in its own words
        b"".join(decoding(text, step))


def test_nothing_is_nothing() -> None:
    assert decoded("") == b""


def test_text_of_padding_is_refused_at_the_first_step() -> None:
    """Kept until the end, it would be copied at each step."""
    steps = decoding("=" * 10_000, 100)
    with pytest.raises(ValueError, match="more than two characters of padding"):
        next(steps)
