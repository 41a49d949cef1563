"""How cells of text files are read: one rule for every verb that reads files.

A cell means what the same text means in a request, without the spaces around it. Texts become numbers only if
no two texts become the same number and no digit is lost: ``007`` is not ``7``, and neither ``+49301234`` nor
an id of 20 digits is a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

NO_NUMBER = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N")
"""Words for a missing number. In a column of texts, all but the empty one are ordinary texts."""

_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
_WHOLE_FLOAT = r"^(0|-?[1-9][0-9]{0,14})\.0+$"
# No more digits before the point than float64 holds. A + only before a fraction, and without a fraction an
# exponent with its sign, as programs write them: +49301234 and 1E5 are codes more often than numbers.
_DIGITS = r"(0|[1-9][0-9]{0,14})"
_FRACTION = rf"[-+]?({_DIGITS}\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
_NUMBER = rf"^(-?{_DIGITS}|{_FRACTION}|[-+]?{_DIGITS}[eE][-+][0-9]+)$"
_NEARLY_ALL, _ENOUGH_CELLS = 0.9, 10_000
_LOOKS_LIKE_A_NUMBER = r"^[-+]?[0-9]*\.?[0-9]+\.?([eE][-+]?[0-9]+)?$"


@dataclass(frozen=True, slots=True)
class Reading:
    """A column of texts after reading.

    Attributes:
        values: The column: texts, integers or floats.
        said: A sentence about a change of meaning that its owner may not expect; "" if there is none.
    """

    values: pa.Array
    said: str = ""


def trimmed(texts: pa.Array) -> pa.Array:
    """Strip spaces and tabs from cells; empty cells become null."""
    bare = pc.utf8_trim(texts, characters=" \t")
    return pc.if_else(pc.equal(bare, ""), pa.scalar(None, bare.type), bare)


def without_words(texts: pa.Array) -> pa.Array:
    """Replace words for a missing number by null."""
    return pc.if_else(pc.is_in(texts, pa.array(NO_NUMBER, texts.type)), pa.scalar(None, texts.type), texts)


def are_whole(texts: pa.Array) -> pa.Array:
    """Tell which cells are integers that int64 holds, in their usual form: bool ``[N]``."""
    return pc.match_substring_regex(texts, _WHOLE)


def are_numbers(texts: pa.Array) -> pa.Array:
    """Tell which cells are numbers whose digits before the point float64 holds: bool ``[N]``."""
    return pc.match_substring_regex(texts, _NUMBER)


def whole_floats(texts: pa.Array) -> pa.Array:
    """Write cells such as ``1012.0`` as ``1012``, as requests do; leave others unchanged."""
    return pc.replace_substring_regex(texts, pattern=_WHOLE_FLOAT, replacement=r"\1")


def look_like_numbers(texts: pa.Array) -> pa.Array:
    """Tell which cells look like numbers, even if they would change as numbers: bool ``[N]``."""
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
        return Reading(texts, look.said)
    numbers = whole_floats(there).cast(pa.int64()) if look.kind == "whole" else there.cast(pa.float64())
    return Reading(numbers, look.said)


class Look:
    """Judges a column of texts, piece by piece.

    Attributes:
        missing: Number of cells that hold a word for a missing number.
        whole_float: The first integer that is written as a float, such as ``1012.0``; "" for none.
    """

    def __init__(self) -> None:
        """Start without cells."""
        self.missing = 0
        self._is_whole = self._are_numbers = True
        self._cells = self._numerals = 0
        self.whole_float = self._odd = self._word = self._other = ""

    def at(self, texts: pa.Array) -> None:
        """Judge more cells, ``trimmed``."""
        there = without_words(texts)
        words = there.null_count - texts.null_count
        if words:
            self.missing += words
            self._word = self._word or texts.filter(pc.and_(there.is_null(), texts.is_valid()))[0].as_py()
        there = there.drop_null()
        if not len(there) or self._is_text_for_sure:
            return
        numerals = look_like_numbers(there)
        self._cells += len(there)
        self._numerals += pc.sum(numerals, min_count=0).as_py()
        self._other = self._other or _first(there, pc.invert(numerals))
        whole, bare = are_whole(there), whole_floats(there)
        are = pc.or_(are_numbers(there), are_whole(bare))
        self._is_whole &= _all(are_whole(bare))
        self.whole_float = self.whole_float or _first(there, pc.and_(are_whole(bare), pc.invert(whole)))
        self._odd = self._odd or _first(there, pc.invert(are))
        self._are_numbers &= not self._odd

    @property
    def _is_text_for_sure(self) -> bool:
        return self._cells >= _ENOUGH_CELLS and not self._nearly_numbers

    @property
    def _nearly_numbers(self) -> bool:
        return self._numerals >= _NEARLY_ALL * self._cells

    @property
    def kind(self) -> Literal["whole", "numbers", "text"]:
        """The kind that all cells so far agree on."""
        if not (self._cells and self._are_numbers):
            return "text"
        return "whole" if self._is_whole else "numbers"

    @property
    def said(self) -> str:
        """A sentence about a change of meaning that its owner may not expect; "" if there is none."""
        if self.kind == "text" and self._cells and self._nearly_numbers:
            if not self._other:
                return f"its values stay texts, as {self._odd!r} would not be the same as a number"
            numbers = f"{self._numerals:,} of {self._cells:,} values are numbers"
            return f"its values stay texts: {numbers}, but {self._other!r} is not (leave missing cells empty)"
        if self.kind == "whole" and self.whole_float:
            return f"its whole numbers are written as floats ({self.whole_float}), and are taken for integers"
        if not (self.missing and self._cells):
            return ""
        meant = "a text like others" if self.kind == "text" else "a missing number"
        rows = "1 row" if self.missing == 1 else f"{self.missing:,} rows"
        return f"{self._word!r} is taken for {meant}, in {rows}"


def _all(flags: pa.Array) -> bool:
    return bool(pc.all(flags, min_count=0).as_py())


def _first(texts: pa.Array, wanted: pa.Array) -> str:
    """Return the first wanted text, "" if there is none."""
    at = pc.index(wanted, True).as_py()
    return str(texts[at].as_py()) if at >= 0 else ""
