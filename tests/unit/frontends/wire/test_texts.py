"""Texts in their raw form, each after its length."""

from __future__ import annotations

import pytest

from headrace.base.errors import InvalidRequest
from headrace.frontends.wire.texts import splitting
from headrace.frontends.wire.time_slicer import run


@pytest.mark.parametrize(
    ("count", "raw"),
    [(0, b"\1"), (1, b"\1\0\0\0"), (1, b"\5\0\0\0abcd"), (2, b"\0\0\0\0\xff\xff\xff\xffx")],
)
def test_a_string_that_is_cut_off_is_refused(count: int, raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"x: string \d is truncated: \d+ bytes are missing"):
        run(splitting("x", raw, count))
