from __future__ import annotations

import struct

import numpy as np
import pytest

from headrace.runtimes.ubjson import decode


def long(number: int) -> bytes:
    return b"L" + struct.pack(">q", number)


def text(value: str) -> bytes:
    return long(len(value.encode())) + value.encode()


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"Z", None),
        (b"T", True),
        (b"i\xff", -1),
        (b"U\xff", 255),
        (b"I\x01\x00", 256),
        (b"l\x00\x00\x01\x00", 256),
        (long(-3), -3),
        (b"d" + struct.pack(">f", 0.5), 0.5),
        (b"D" + struct.pack(">d", 0.1), 0.1),
        (b"S" + text("größe"), "größe"),
        (b"[TF]", [True, False]),
        (b"[#" + long(2) + b"i\x01Z", [1, None]),
        (b"{" + text("a") + b"i\x01" + text("b") + b"{}}", {"a": 1, "b": {}}),
    ],
)
def test_values(data: bytes, value: object) -> None:
    assert decode(data) == value


def test_an_array_of_one_type_is_an_array() -> None:
    found = decode(b"[$l#" + long(2) + struct.pack(">ii", 1, -2))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [1, -2]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is cut"),
        (b"{", "it is cut"),
        (b"[$l#" + long(3) + bytes(8), "it is cut"),
        (b"[$d#" + long(2**62), "it is cut"),
        (b"[#" + long(2**62), "it is cut"),
        (b"S" + long(9) + b"short", "it is cut"),
        (b"[$l#" + long(-1), "not a number of items"),
        (b"[$S#" + long(1), "expected an array of numbers"),
        (b"?", "begins no value"),
        (b"TT", "1 bytes follow its end"),
        (b"[" * 100, "nested more than 64 deep"),
        (b"{" + 2 * (text("a") + b"T") + b"}", "'a' is there twice"),
    ],
)
def test_errors(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode(data)
