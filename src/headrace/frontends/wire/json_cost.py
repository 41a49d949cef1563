"""Estimate the cost of JSON text from its bytes, to choose the parser, and whether to parse at once."""

from __future__ import annotations

import re

import numpy as np

from headrace.config import Limits
from headrace.frontends.wire.request_budget import BYTES_A_VALUE

_AT_ONCE_BYTES = 16 * 1024
_LIGHT_TIMES = 4
_LIGHT_COST = 16 * 1024  # in units of one comma; about a millisecond in all
_COST_OF_BRACKETS = 3
_COMMA_BYTE = ord(",")
_NO_CASE, _OPENING = 0xDF, ord("[")  # the two opening brackets differ only in the case bit
_FEW_EXPONENTS = 4
_COUNTED_BYTES = 4096  # below this, searching is faster than array operations
_SHORT_BYTES = 1024
_LOWER = 0x20
_NUMBER_WITH_EXPONENT = re.compile(rb"[\[:,\s]-?[0-9][0-9.]*[eE][-+]?0*[1-9][0-9]")
_EXPONENTS = (re.compile(rb"e[-+]?0*[1-9][0-9]"), re.compile(rb"E[-+]?0*[1-9][0-9]"))


def at_once_bytes(limits: Limits) -> int:
    """Return the size up to which any text is parsed at once; such texts never hold too many values."""
    return min(_AT_ONCE_BYTES, limits.max_values * BYTES_A_VALUE)


def light_bytes(at_once: int, limits: Limits) -> int:
    """Return the size up to which a text is parsed at once if it is light, or of a known type.

    Args:
        at_once: Size up to which any text is parsed at once.
        limits: Limits on a request; such texts never hold more values than these allow.
    """
    return min(_LIGHT_TIMES * at_once, limits.max_values * BYTES_A_VALUE)


def parsed_at_once(text: bytes, at_once: int, limits: Limits) -> bool:
    """Return whether a text is parsed at once: it is short, or light and not much longer."""
    size = len(text)
    return size <= at_once or (size <= light_bytes(at_once, limits) and is_light(text))


def is_light(text: bytes) -> bool:
    """Return whether parsing a text takes no longer than its size suggests.

    Most texts are light: their numbers have several digits. A few array operations distinguish them from
    texts made of brackets, or full of slow numbers.
    """
    given = np.frombuffer(text, np.uint8)
    opened = np.count_nonzero((given & _NO_CASE) == _OPENING)
    cost = np.count_nonzero(given == _COMMA_BYTE) + _COST_OF_BRACKETS * opened
    return bool(cost <= _LIGHT_COST) and not has_slow_numbers(text)


def has_slow_numbers(text: bytes) -> bool:
    """Return whether a text may hold numbers that take msgspec up to 50 µs each, a thousand times the usual.

    Those are numbers with large exponents, such as ``1e-320``; Python's own parser handles them fast.
    """
    if len(text) <= _SHORT_BYTES and text.find(b"E") < 0:  # counting is as fast as finding in short texts
        if text.count(b"e") <= _FEW_EXPONENTS or not _EXPONENTS[0].search(text):
            return False
        return _NUMBER_WITH_EXPONENT.search(text) is not None
    some = _some(b"e", text)
    if some <= _FEW_EXPONENTS and (text.find(b"E") < 0 or some + _some(b"E", text) <= _FEW_EXPONENTS):
        return False
    if len(text) > _COUNTED_BYTES:
        given = np.frombuffer(text, np.uint8)
        letters, digits = (given | _LOWER) == ord("e"), given - np.uint8(ord("0")) <= 9
        if np.count_nonzero(letters[1:] & digits[:-1]) <= _FEW_EXPONENTS:
            return False
    if not any(pattern.search(text) for pattern in _EXPONENTS):
        return False
    return _NUMBER_WITH_EXPONENT.search(text) is not None


def _some(letter: bytes, text: bytes) -> int:
    """Return the count of a letter, at most one more than few; finding is ten times as fast as counting."""
    found, at = 0, text.find(letter)
    while at >= 0 and found <= _FEW_EXPONENTS:
        found += 1
        at = text.find(letter, at + 1)
    return found
