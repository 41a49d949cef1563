"""Compiled kernels that read the words of Vowpal Wabbit's text format: hash names, and read numbers.

As in VW's sources: ``hash.h`` (32-bit MurmurHash3) and ``hashstring.h`` for names, ``parse_primitives.h`` for
numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.base.tensors import Array
from headrace.jit.kernel_cache import part

SPACE, BAR = b" |"
IS_NUMBER, IS_TEXT, IS_WRONG = 0, 1, 2
"""Kinds of values; the last one only begins like a number."""

ALL_ONES = np.uint64(0xFFFFFFFF)

_PLUS, _MINUS, _POINT, _ZERO, _NINE = b"+-.09"
_A, _E, _F, _I, _N, _LOWER_CASE = *b"aefin", 32
_LARGEST_POWER, _SMALLEST_POWER, _MOST_DECIMALS, _HUGE = 38, -37, 35, 1000


def _powers() -> Array:
    """Powers of ten from 10^-37 to 10^38, each made from the one before in float32, as VW makes them."""
    ten, up, down = np.float32(10), [np.float32(1)], [np.float32(1)]
    for _ in range(_LARGEST_POWER):
        up.append(up[-1] * ten)
    for _ in range(-_SMALLEST_POWER):
        down.append(down[-1] / ten)
    return np.array([*down[:0:-1], *up], np.float32)


_POWERS = _powers()


# ---- Hashes ---------------------------------------------------------------------------------------


@part(inline="always")
def _turned(value: Any, by: int) -> Any:
    return ((value << np.uint64(by)) | (value >> np.uint64(32 - by))) & ALL_ONES


@part(inline="always")
def _mixed(word: Any) -> Any:
    word = (word * np.uint64(0xCC9E2D51)) & ALL_ONES
    return (_turned(word, 15) * np.uint64(0x1B873593)) & ALL_ONES


@part()
def murmur(text: Any, start: int, stop: int, seed: Any) -> Any:
    """Return the 32-bit MurmurHash3 (x86) of some bytes."""
    hashed, at = seed, start
    while at + 4 <= stop:
        word = (
            np.uint64(text[at])
            | np.uint64(text[at + 1]) << np.uint64(8)
            | np.uint64(text[at + 2]) << np.uint64(16)
            | np.uint64(text[at + 3]) << np.uint64(24)
        )
        hashed = _turned(hashed ^ _mixed(word), 13)
        hashed = (hashed * np.uint64(5) + np.uint64(0xE6546B64)) & ALL_ONES
        at += 4
    rest = np.uint64(0)
    for place in range(stop - at):
        rest |= np.uint64(text[at + place]) << np.uint64(8 * place)
    hashed ^= _mixed(rest) ^ np.uint64(stop - start)
    hashed = ((hashed ^ (hashed >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & ALL_ONES
    hashed = ((hashed ^ (hashed >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & ALL_ONES
    return hashed ^ (hashed >> np.uint64(16))


@part()
def hash_name(text: Any, start: int, stop: int, seed: Any, hash_all: bool) -> Any:
    """Return the hash of a name: of digits alone, their number plus the seed, unless all are hashed."""
    if hash_all:
        return murmur(text, start, stop, seed)
    while start < stop and text[start] <= SPACE:
        start += 1
    while start < stop and text[stop - 1] <= SPACE:
        stop -= 1
    number = np.uint64(0)
    for at in range(start, stop):
        if text[at] < _ZERO or text[at] > _NINE:
            return murmur(text, start, stop, seed)
        number = number * np.uint64(10) + np.uint64(text[at] - _ZERO)
    return (number + seed) & ALL_ONES


# ---- Numbers --------------------------------------------------------------------------------------


@part(inline="always")
def _is_digit(byte: Any) -> bool:
    return bool(_ZERO <= byte <= _NINE)


@part()
def _begins_like_number(text: Any, at: int, stop: int) -> bool:
    """Whether C's ``strtof`` would read something of a text: a digit, ``inf`` or ``nan`` after any sign."""
    if at < stop and (text[at] == _PLUS or text[at] == _MINUS):
        at += 1
    if at < stop and text[at] == _POINT:
        at += 1
        return at < stop and _is_digit(text[at])
    if at < stop and _is_digit(text[at]):
        return True
    if stop - at < 3:
        return False
    one, two, three = text[at] | _LOWER_CASE, text[at + 1] | _LOWER_CASE, text[at + 2] | _LOWER_CASE
    return bool(
        (one == _I and two == _N and three == _F) or (one == _N and two == _A and three == _N)  # inf, nan
    )


@part()
def _exponent(text: Any, at: int, stop: int) -> tuple[int, int]:
    """Return the exponent at a position, limited to four digits' worth, and its end."""
    sign = 1
    if at < stop and text[at] == _MINUS:
        sign = -1
        at += 1
    exponent = 0
    while at < stop and _is_digit(text[at]):
        exponent = exponent * 10 + (text[at] - _ZERO) if exponent < _HUGE else _HUGE
        at += 1
    return sign * exponent, at


@part()
def _scaled(value: Any, exponent: int) -> Any:
    if exponent > _LARGEST_POWER:
        return value * np.float32(np.inf)
    if exponent < _SMALLEST_POWER:
        return np.float32(0)
    return np.float32(value * _POWERS[exponent - _SMALLEST_POWER])


@part()
def read_plain(text: Any, at: int, stop: int) -> tuple[bool, Any]:
    """Read a number as VW does where nothing but a space follows; returns whether it is one, and its value.

    Digits are added up in float32. A number without digits, such as ``-`` or ``e``, is 0.
    """
    sign, value, decimals, exponent = np.float32(1), np.float32(0), 0, 0
    ten, zero = np.float32(10), np.float32(_ZERO)
    if at < stop and text[at] == _MINUS:
        sign = np.float32(-1)
        at += 1
    while at < stop and _is_digit(text[at]):
        value = np.float32(np.float32(np.float32(value * ten) + np.float32(text[at])) - zero)
        at += 1
    if at < stop and text[at] == _POINT:
        at += 1
        while at < stop and _is_digit(text[at]):
            if decimals < _MOST_DECIMALS:
                value = np.float32(np.float32(value * ten) + np.float32(text[at] - _ZERO))
                decimals += 1
            at += 1
    if at < stop and (text[at] | _LOWER_CASE) == _E:
        exponent, at = _exponent(text, at + 1, stop)
    return at == stop, np.float32(sign * _scaled(value, exponent - decimals))


@part()
def read_exact(text: Any, at: int, stop: int) -> tuple[bool, Any]:
    """Read a number as C does; returns whether it is one, and its value in float32."""
    sign, value, shift, digits = 1.0, 0.0, 0, 0
    if at < stop and (text[at] == _PLUS or text[at] == _MINUS):
        sign = -1.0 if text[at] == _MINUS else 1.0
        at += 1
    has_point = False
    while at < stop and (_is_digit(text[at]) or (text[at] == _POINT and not has_point)):
        if text[at] == _POINT:
            has_point = True
        else:
            digits += 1
            if value < 1e15:  # further digits do not change the float32
                value = value * 10 + (np.int64(text[at]) - _ZERO)
                shift -= has_point
            elif not has_point:
                shift += 1
        at += 1
    if digits and at + 1 < stop and (text[at] | _LOWER_CASE) == _E:
        begin = at + 1
        if text[begin] == _PLUS and begin + 1 < stop and _is_digit(text[begin + 1]):
            begin += 1
        exponent, end = _exponent(text, begin, stop)
        if not _is_digit(text[end - 1]):
            return False, np.float32(0)
        at = end
        shift += exponent
    value = value / 10.0**-shift if -300 < shift < 0 else value * 10.0**shift
    return digits > 0 and at == stop, np.float32(sign * value)


@part()
def read_value(text: Any, at: int, stop: int, end: int) -> tuple[int, Any]:
    """Read a value: returns whether it is a number, a text or neither, and the number.

    Args:
        text: The lines.
        at: The value's start.
        stop: Its end, if it is a number: the next space or bar.
        end: The line's end.
    """
    if stop == end or text[stop] != BAR:
        is_number, value = read_plain(text, at, stop)
        if is_number:
            return IS_NUMBER, value
    if not _begins_like_number(text, at, stop):
        return IS_TEXT, np.float32(1)
    is_number, value = read_exact(text, at, stop)
    return (IS_NUMBER if is_number else IS_WRONG), value
