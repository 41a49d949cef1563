"""What JSON text costs, seen from its bytes: whether it is parsed at once, and by which parser."""

from __future__ import annotations

import re

import numpy as np

from headrace.config import Limits
from headrace.frontends.wire.allowance import BYTES_A_VALUE

_AT_ONCE_BYTES = 16 * 1024
_LIGHT_TIMES = 4
_LIGHT_COST = 16 * 1024  # of what one comma costs: about a millisecond
_COST_OF_BRACKETS = 3
_COMMA_BYTE = ord(",")
_NO_CASE, _OPENING = 0xDF, ord("[")  # both opening brackets, as one letter's two cases
_FEW_EXPONENTS = 4
_COUNTED_BYTES = 4096  # below these, searching is quicker than an array
_SHORT_BYTES = 1024
_LOWER = 0x20
_NUMBER_WITH_EXPONENT = re.compile(rb"[\[:,\s]-?[0-9][0-9.]*[eE][-+]?0*[1-9][0-9]")
_EXPONENTS = (re.compile(rb"e[-+]?0*[1-9][0-9]"), re.compile(rb"E[-+]?0*[1-9][0-9]"))


def at_once_bytes(limits: Limits) -> int:
    """How long a text may be to be parsed at once: so short ones never hold too many values."""
    return min(_AT_ONCE_BYTES, limits.max_values * BYTES_A_VALUE)


def light_bytes(at_once: int, limits: Limits) -> int:
    """How long a text may be to be parsed at once if it is light, or of a type that is known.

    Args:
        at_once: How long any text may be.
        limits: Such texts never hold more values than these allow.
    """
    return min(_LIGHT_TIMES * at_once, limits.max_values * BYTES_A_VALUE)


def parsed_at_once(text: bytes, at_once: int, limits: Limits) -> bool:
    """Whether a text is parsed at once: it is short, or not much longer and light."""
    size = len(text)
    return size <= at_once or (size <= light_bytes(at_once, limits) and is_light(text))


def is_light(text: bytes) -> bool:
    """Whether a text takes no longer than its bytes say.

    Most do: their numbers have several digits. Some array operations tell them from texts that are all
    brackets, or full of numbers that take long.
    """
    given = np.frombuffer(text, np.uint8)
    opened = np.count_nonzero((given & _NO_CASE) == _OPENING)
    cost = np.count_nonzero(given == _COMMA_BYTE) + _COST_OF_BRACKETS * opened
    return bool(cost <= _LIGHT_COST) and not has_slow_numbers(text)


def has_slow_numbers(text: bytes) -> bool:
    """Whether a text may hold numbers for which msgspec takes up to 50 µs each, a thousand times the usual.

    Those are numbers with large exponents, such as ``1e-320``; Python's own parser has no trouble with them.
    """
    if len(text) <= _SHORT_BYTES and text.find(b"E") < 0:  # counting is as quick as finding some, there
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
    """How many of a letter there are, or one more than few; finding is ten times as quick as counting."""
    found, at = 0, text.find(letter)
    while at >= 0 and found <= _FEW_EXPONENTS:
        found += 1
        at = text.find(letter, at + 1)
    return found
