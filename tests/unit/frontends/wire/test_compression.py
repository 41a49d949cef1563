"""Compressed bodies, opened within the limits."""

from __future__ import annotations

import gzip
import random

import pytest

from headrace.base.errors import InvalidRequest, TooLarge
from headrace.config import Limits
from headrace.frontends.wire.compression import ALWAYS_OPENED_BYTES, opening
from headrace.frontends.wire.time_slicer import run

LIMITS = Limits(max_message_bytes=100)


def opened(packed: bytes, limits: Limits) -> bytes:
    return run(opening(packed, limits))


def test_no_more_than_the_limit_is_ever_decompressed() -> None:
    bomb = gzip.compress(b"\x00" * 10_000_000)
    with pytest.raises(TooLarge):
        opened(bomb, LIMITS)
    assert opened(gzip.compress(b"a" * 100), LIMITS) == b"a" * 100


@pytest.mark.parametrize(
    "packed",
    [b"", gzip.compress(b"abc")[:-1], gzip.compress(b"abc") + b"x", gzip.compress(b"abc") * 2, b"abc"],
    ids=["nothing", "cut short", "something after it", "two in a row", "not compressed"],
)
def test_compressed_data_is_one_whole_piece(packed: bytes) -> None:
    with pytest.raises(InvalidRequest):
        opened(packed, LIMITS)


def test_what_compresses_well_may_open_to_a_stated_ratio() -> None:
    limits = Limits(max_expansion=16)
    small = gzip.compress(bytes(ALWAYS_OPENED_BYTES))
    assert len(opened(small, limits)) == ALWAYS_OPENED_BYTES
    with pytest.raises(TooLarge, match=r"16 times as many \(limits\.max_expansion\), or 1 MiB"):
        opened(gzip.compress(bytes(ALWAYS_OPENED_BYTES + 1)), limits)
    noise = random.Random(1).randbytes(100_000)  # 100 KB on the wire may open to 1.6 MB
    assert len(opened(gzip.compress(noise + bytes(1_400_000)), limits)) == 1_500_000
    with pytest.raises(TooLarge, match="decompresses to more than 16"):
        opened(gzip.compress(noise + bytes(1_700_000)), limits)
