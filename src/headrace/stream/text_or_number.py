"""Read cells of text files by one rule for every command.

A cell, without the spaces around it, means the same as that text in a request. A text becomes a number only
in a form in which programs write numbers, and only if int64 or float64 holds its digits before the point.
``007``, ``+49301234`` and an id of 20 digits stay texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.base.tensors import Array

# Recognise columns of plain numbers quickly, because nearly all numeric columns contain nothing else.
#
# Regular expressions take ten times as long as the conversion. Cells that are recognised here can be cast;
# others are examined by the expressions below.


_LONGEST_INTEGER, _LONGEST_BEFORE_POINT = 18, 15
_MINUS, _POINT, _SLASH, _ZERO, _NINE = b"-./09"


class _Plain(NamedTuple):
    """Properties of cells that consist of digits, a sign and a point.

    Attributes:
        longest: Maximum number of digits before the point.
        has_point: Whether some cell has a point.
        has_negative_zero: Whether some cell is ``-0``.
    """

    longest: int
    has_point: bool
    has_negative_zero: bool


def are_plain_integers(texts: pa.Array) -> bool:
    """Whether every cell is missing or a plain integer that int64 holds.

    Args:
        texts: The cells.
    """
    found = _plain(texts)
    return (
        found is not None
        and found.longest <= _LONGEST_INTEGER
        and not (found.has_point or found.has_negative_zero)
    )


def are_plain_numbers(texts: pa.Array) -> bool:
    """Whether every cell is missing or a plain number whose digits before the point float64 holds.

    Plain numbers have no exponent.

    Args:
        texts: The cells.
    """
    found = _plain(texts)
    return found is not None and found.longest <= _LONGEST_BEFORE_POINT


def may_hold_words(texts: pa.Array) -> bool:
    """Whether some cell has a letter or another character above the digits.

    Types other than ``string`` and ``large_string`` are not examined: the answer is True.

    Args:
        texts: The cells.
    """
    found = _bytes_of(texts)
    return found is None or (len(found[0]) > 0 and bool(found[0].max() > _NINE))


def _bytes_of(texts: pa.Array) -> tuple[Array, Array, Array] | None:
    """Return the bytes of all cells (uint8), the length and the start of each; None for other types."""
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        return None
    _, places, content = texts.buffers()
    kind = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    offsets = np.frombuffer(places, kind)[texts.offset : texts.offset + len(texts) + 1]
    if content is None or not len(offsets):
        return np.empty(0, np.uint8), np.empty(0, kind), np.empty(0, kind)
    body = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]]
    return body, np.diff(offsets), offsets[:-1] - offsets[0]


def _plain(texts: pa.Array) -> _Plain | None:
    """Return the cells' properties; None if one is not a plain number, is empty, or has a leading zero."""
    found = _bytes_of(texts)
    if found is None:
        return None
    body, lengths, begins = found
    is_there = lengths > 0
    if not is_there.any():
        return _Plain(0, False, False) if texts.null_count == len(texts) else None
    if len(texts) - texts.null_count != np.count_nonzero(is_there):
        return None
    lengths, begins = lengths[is_there], begins[is_there]
    if body.max() > _NINE or body.min() < _MINUS or bool((body == _SLASH).any()):
        return None
    is_signed = body[begins] == _MINUS
    if np.count_nonzero(body == _MINUS) != np.count_nonzero(is_signed):
        return None
    points = np.flatnonzero(body == _POINT)
    before = lengths - is_signed
    if len(points):
        cells = np.searchsorted(begins, points, "right") - 1
        if bool((cells[1:] == cells[:-1]).any()):
            return None
        before[cells] = points - begins[cells] - is_signed[cells]
        if bool((lengths - is_signed < 1 + np.bincount(cells, minlength=len(lengths))).any()):
            return None
    elif bool((before < 1).any()):
        return None
    is_zero = body[begins + is_signed] == _ZERO
    if bool((is_zero & (before > 1)).any()):
        return None
    is_negative_zero = is_signed & is_zero & (lengths == len(b"-0"))
    return _Plain(int(before.max()), len(points) > 0, bool(is_negative_zero.any()))


NO_NUMBER = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N")
"""Words for a missing number. In a column of texts, all but the empty one are ordinary texts."""

_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
_WHOLE_FLOAT = r"^(0|-?[1-9][0-9]{0,14})\.0+$"
# No more digits before the point than float64 holds, no leading +, and an exponent only as programs write it:
# 1e-05, 1E-05, 1.0E10. +49301234, 1E5 and 12E-4 are codes more often than numbers.
_DIGITS = r"(0|[1-9][0-9]{0,14})"
_FRACTION = rf"({_DIGITS}\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
_NUMBER = rf"^-?({_DIGITS}|{_FRACTION}|[1-9](e[-+][0-9]+|E[-+][0-9][0-9]+))$"
_LOOKS_LIKE_A_NUMBER = r"^[-+]?[0-9]*\.?[0-9]+\.?([eE][-+]?[0-9]+)?$"
_SHORTENED = r"^-?[1-9](\.[0-9]+)?E\+[0-9]{2}$"  # a long integer as written by spreadsheets
_PLAIN_FRACTION, _LAST_ZERO = r"^-?[0-9]*\.[0-9]+$", r"\.[0-9]+0$"
_NEARLY_ALL, _MOST, _FEW_OTHERS, _ENOUGH_CELLS = 0.9, 0.5, 3, 10_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of a column of texts.

    Attributes:
        values: The column: texts, integers or floats.
        said: A sentence about an unexpected change of meaning; "" for none.
        is_nearly_numbers: Whether most of its cells look like numbers.
    """

    values: pa.Array
    said: str = ""
    is_nearly_numbers: bool = False


def trimmed(texts: pa.Array) -> pa.Array:
    """Strip spaces and tabs from cells; empty cells become null."""
    bare = pc.utf8_trim(texts, characters=" \t")
    return pc.if_else(pc.equal(bare, ""), pa.scalar(None, bare.type), bare)


def without_words(texts: pa.Array) -> pa.Array:
    """Replace words for a missing number by null."""
    return pc.if_else(pc.is_in(texts, pa.array(NO_NUMBER, texts.type)), pa.scalar(None, texts.type), texts)


def are_whole(texts: pa.Array) -> pa.Array:
    """Return whether each cell is an integer that int64 holds, in its usual form: bool ``[N]``."""
    return pc.match_substring_regex(texts, _WHOLE)


def are_numbers(texts: pa.Array) -> pa.Array:
    """Return whether each cell is a number whose digits before the point float64 holds: bool ``[N]``."""
    return pc.match_substring_regex(texts, _NUMBER)


def are_floats(texts: pa.Array) -> pa.Array:
    """Return whether each cell is a number with a point or an exponent: bool ``[N]``."""
    return pc.and_(look_like_numbers(texts), pc.match_substring_regex(texts, "[.eE]"))


def whole_floats(texts: pa.Array) -> pa.Array:
    """Rewrite cells such as ``1012.0`` as ``1012``, as in requests; leave others unchanged."""
    return pc.replace_substring_regex(texts, pattern=_WHOLE_FLOAT, replacement=r"\1")


def look_like_numbers(texts: pa.Array) -> pa.Array:
    """Return whether each cell looks like a number, even if it would change as one: bool ``[N]``."""
    return pc.match_substring_regex(texts, _LOOKS_LIKE_A_NUMBER)


def read_column(texts: pa.Array) -> Reading:
    """Read a column of texts as integers, floats or texts.

    Args:
        texts: The cells, ``trimmed``.
    """
    look = Look()
    look.at(texts)
    there = without_words(texts)
    if look.kind == "text":
        return Reading(texts, look.said, look.is_nearly_numbers)
    numbers = whole_floats(there).cast(pa.int64()) if look.kind == "whole" else there.cast(pa.float64())
    return Reading(numbers, look.said, is_nearly_numbers=True)


class Look:
    """Determines the kind of a column of texts, piece by piece.

    Attributes:
        missing: Number of cells that contain a word for a missing number.
        whole_float: The first integer that is written as a float, such as ``1012.0``; "" for none.
    """

    def __init__(self) -> None:
        """Start without cells."""
        self.missing = 0
        self.whole_float = ""
        self._cells = self._numerals = 0
        self._is_whole = True
        self._word = self._no_number = self._shortened = ""
        self._others: list[str] = []
        self._decimals = _Decimals()

    def at(self, texts: pa.Array) -> None:
        """Examine more cells, which must be ``trimmed``."""
        if are_plain_integers(texts) and are_plain_numbers(texts):
            self._cells += len(texts) - texts.null_count
            self._numerals += len(texts) - texts.null_count
            return
        there = without_words(texts)
        words = there.null_count - texts.null_count
        if words:
            self.missing += words
            self._word = self._word or texts.filter(pc.and_(there.is_null(), texts.is_valid()))[0].as_py()
        cells = len(there) - there.null_count
        if not cells or self._is_text_for_sure:
            return
        numerals = look_like_numbers(there)
        self._cells += cells
        self._numerals += pc.sum(numerals, min_count=0).as_py()
        if len(self._others) <= _FEW_OTHERS and self._numerals < self._cells:
            others = pc.unique(there.filter(pc.invert(numerals)))[: _FEW_OTHERS + 1].to_pylist()
            self._others += [one for one in others if one not in self._others]
        if not self._numerals:
            self._is_whole, self._no_number = False, self._others[0]
            return
        whole = are_whole(whole_floats(there))
        self._is_whole &= bool(pc.all(whole, min_count=0).as_py())
        self.whole_float = self.whole_float or _first(there, pc.and_(whole, pc.invert(are_whole(there))))
        self._no_number = self._no_number or _first(there, pc.invert(are_numbers(there)))
        self._shortened = self._shortened or _first(there, pc.match_substring_regex(there, _SHORTENED))
        self._decimals.at(there)

    @property
    def _is_text_for_sure(self) -> bool:
        return self._cells >= _ENOUGH_CELLS and not self.is_nearly_numbers

    @property
    def is_nearly_numbers(self) -> bool:
        """Whether most cells look like numbers."""
        most = _MOST if len(self._others) <= _FEW_OTHERS else _NEARLY_ALL
        return self._numerals > 0 and self._numerals >= most * self._cells

    @property
    def kind(self) -> Literal["whole", "numbers", "text"]:
        """The kind that fits all cells so far."""
        if not self._cells:
            return "text"
        if self._is_whole:
            return "whole"
        return "text" if self._no_number or self._decimals.merging else "numbers"

    @property
    def said(self) -> str:
        """A sentence about an unexpected change of meaning; "" for none."""
        kind = self.kind
        if not self._cells:
            return "it has no values to infer a type from, so it is treated as text"
        if kind == "text" and self.is_nearly_numbers:
            if self._others:
                numbers = f"{self._numerals:,} of {self._cells:,} values are numbers"
                other = f"{self._others[0]!r} is not (leave missing cells empty)"
                return f"its values stay text: {numbers}, but {other}"
            odd = self._no_number or self._decimals.merging
            return f"its values stay text, because {odd!r} would change if read as a number"
        if kind == "whole" and self.whole_float:
            return f"its whole numbers are written as floats ({self.whole_float}), and treated as integers"
        if kind == "numbers" and self._shortened:
            return f"{self._shortened!r} may be an id whose last digits a spreadsheet has cut off"
        if not self.missing:
            return ""
        meant = "ordinary text" if kind == "text" else "a missing number"
        rows = "1 row" if self.missing == 1 else f"{self.missing:,} rows"
        return f"{self._word!r} is treated as {meant}, in {rows}"


class _Decimals:
    """Counts the decimals of fractions.

    If their number differs and a fraction ends in 0, as in 1.1 and 1.10, they may be versions.
    """

    def __init__(self) -> None:
        """Start without cells."""
        self._fewest = self._most = 0
        self._last_zero = ""

    def at(self, texts: pa.Array) -> None:
        """Examine more cells."""
        fractions = texts.filter(pc.match_substring_regex(texts, _PLAIN_FRACTION))
        if not len(fractions):
            return
        lengths = pc.utf8_length(pc.replace_substring_regex(fractions, pattern=r"^.*\.", replacement=""))
        found = pc.min_max(lengths).as_py()
        self._fewest = min(self._fewest or found["min"], found["min"])
        self._most = max(self._most, found["max"])
        self._last_zero = self._last_zero or _first(
            fractions, pc.match_substring_regex(fractions, _LAST_ZERO)
        )

    @property
    def merging(self) -> str:
        """A cell that may be the same number as another text; "" for none."""
        return self._last_zero if self._fewest < self._most else ""


def _first(texts: pa.Array, wanted: pa.Array) -> str:
    """Return the first wanted text; "" if there is none."""
    at = pc.index(wanted, True).as_py()
    return str(texts[at].as_py()) if at >= 0 else ""
