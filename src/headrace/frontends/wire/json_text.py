"""Parse JSON text of any size in linear time, large texts in slices.

A large text is first scanned in pieces by array operations, which find its brackets, commas and colons
outside strings. So its depth and the number of its values are known before any value is made, and the parser
can be given short parts of it, one by one.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.base.errors import InvalidRequest
from headrace.frontends.wire.json_cost import has_slow_numbers
from headrace.frontends.wire.long_lists import given_back
from headrace.frontends.wire.request_budget import RequestBudget, check_name
from headrace.frontends.wire.time_slicer import TimeSlicer

Json = Any
"""Decoded JSON; to be checked with isinstance before use."""

_PIECE_BYTES = 128 * 1024
_PART_BYTES = 16 * 1024
_PART_MARKS = 4096
_TEXT_BYTES = 256 * 1024
_LONGEST_NUMBER = 16 * 1024  # more than any real number; a library takes 4 ns per digit, in one step
_BEYOND = 10**400  # beyond the limits of any dtype; stands for a number such as 1e400 until a check names it
_LONGEST_ESCAPE = len(r"\ud83d\ude00")
_SURROGATES = rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_WHOLE_ESCAPES = re.compile(rb"(?:[^\\]++|" + _SURROGATES + rb"|\\u(?![dD][89abAB]).{4}|\\[^u])*+", re.DOTALL)
_BYTES_A_VALUE_HELD = 96  # average of a parsed document: 8 for a small number, 230 for an object and its name

_COMMA, _COLON, _LIST, _OBJECT = 1, 2, 3, 4
_END = 2  # the code of a closing bracket is that of its opening bracket plus this
_QUOTED = 7
_CODES = {
    ",": _COMMA,
    ":": _COLON,
    "[": _LIST,
    "{": _OBJECT,
    "]": _LIST + _END,
    "}": _OBJECT + _END,
    '"': _QUOTED,
}
_MARKS = bytes(_CODES.get(chr(one), 0) for one in range(256))
_NEITHER_BRACKETS_NOR_QUOTES = bytes({*range(256)} - {*b'[]{}"\\'})
_USUAL_DEPTH = 4
_BRACKETS_AND_QUOTES = bytes(0 if code in (_COMMA, _COLON) else code for code in _MARKS)
_STEPS = np.array([0, 0, 0, 1, 1, -1, -1], np.int32)
_BRACKETS = {_LIST: (b"[", b"]"), _OBJECT: (b"{", b"}")}
_BACKSLASH = ord("\\")
_SPACE = b" \t\n\r"

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_decode = msgspec.json.Decoder().decode

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


# ---- At once ----


def parse_at_once(text: bytes, max_depth: int) -> Json:
    """Parse a short or light text.

    Args:
        text: JSON; NaN, Infinity and -Infinity are accepted as numbers.
        max_depth: Largest nesting depth.

    Raises:
        InvalidRequest: The text is not JSON, or nested too deep.
    """
    check_depth(text, max_depth)
    return decode(text)


def check_depth(text: bytes, max_depth: int) -> None:
    """Check the nesting depth of a short or light text.

    Args:
        text: JSON that has not been parsed.
        max_depth: Largest nesting depth.

    Raises:
        InvalidRequest: The text is nested too deep.
    """
    # Keep brackets only; each pass removes the innermost pairs. If some remain, compute their depth.
    brackets = text.translate(None, _NEITHER_BRACKETS_NOR_QUOTES).replace(b'""', b"")
    for _ in range(min(_USUAL_DEPTH, max_depth)):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        depth = np.cumsum(_STEPS[_Scanner(_BRACKETS_AND_QUOTES).marks(text)[1]])
        if len(depth) and depth.max() > max_depth:
            raise _too_deep(max_depth)


def decode(text: bytes, *, nan: bool = True) -> Json:
    """Parse a text without checking its nesting depth.

    A number that no float can hold becomes a large integer, which whoever knows the input refuses.

    Args:
        text: JSON text.
        nan: Whether NaN, Infinity and -Infinity are accepted as numbers.

    Raises:
        InvalidRequest: The text is not JSON.
    """
    if has_slow_numbers(text):
        return _decode_slow_numbers(text, nan)
    try:
        return _decode(text)
    except RecursionError as error:
        raise InvalidRequest("expected JSON with less nesting", field="body") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"expected UTF-8, got {error.reason}; send bytes as base64", field="body"
        ) from error
    except msgspec.DecodeError as error:
        if b"NaN" not in text and b"Infinity" not in text and "out of range" not in str(error):
            raise InvalidRequest(f"expected JSON: {error}", field="body") from error
        return _decode_slow_numbers(text, nan)


def _decode_slow_numbers(text: bytes, nan: bool) -> Json:
    try:
        found = json.loads(text.decode(), parse_float=_number, parse_constant=None if nan else _no_number)
        if _SURROGATE.search(text):  # this parser accepts lone surrogates, which are not text
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError as error:
        raise InvalidRequest("expected JSON with less nesting", field="body") from error
    except ValueError as error:
        raise InvalidRequest(f"expected JSON: {error}", field="body") from error


def _number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _BEYOND if number > 0 else -_BEYOND


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not valid JSON")


def _too_deep(max_depth: int) -> InvalidRequest:
    return InvalidRequest(
        f"expected JSON nested at most {max_depth} deep, got deeper (limits.max_json_depth)", field="body"
    )


# ---- Finding the marks ----


class _Scanner:
    """Finds brackets, commas and colons outside strings in consecutive pieces of a text."""

    __slots__ = ("_escaped", "_in_string", "_wanted")

    def __init__(self, wanted: bytes = _MARKS) -> None:
        """Start outside a string.

        Args:
            wanted: Code of each byte, 0 for bytes to skip; quotes are always needed.
        """
        self._escaped = False
        self._in_string = False
        self._wanted = wanted

    @property
    def in_string(self) -> bool:
        """Whether the pieces so far end within a string."""
        return self._in_string

    def marks(self, piece: bytes) -> tuple[Integers, Bytes]:
        """Return the positions of the marks in the next piece, and their codes."""
        coded = np.frombuffer(piece.translate(self._wanted), np.uint8)
        if self._escaped or b"\\" in piece:
            coded = self._without_escaped(np.frombuffer(piece, np.uint8), coded)
        at = np.flatnonzero(coded != 0)
        codes = coded[at]
        quotes = codes == _QUOTED
        if not self._in_string and not quotes.any():
            return at, codes
        inside = np.logical_xor.accumulate(quotes)
        if self._in_string:
            inside = ~inside
        if len(inside):
            self._in_string = bool(inside[-1])
        outside = np.flatnonzero(~(inside | quotes))
        return at[outside], codes[outside]

    def _without_escaped(self, given: Bytes, coded: Bytes) -> Bytes:
        """Clear escaped quotes: of a run of backslashes, every other one escapes the next character."""
        coded = coded.copy()
        slashes = np.flatnonzero(given == _BACKSLASH)
        if self._escaped and not (len(slashes) and slashes[0] == 0) and coded[0] == _QUOTED:
            coded[0] = 0
        if not len(slashes):
            self._escaped = False
            return coded
        starts = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
        within = np.arange(len(slashes)) - np.repeat(starts, np.diff(starts, append=len(slashes)))
        if self._escaped and slashes[0] == 0:
            first_run = starts[1] if len(starts) > 1 else len(slashes)
            within[:first_run] += 1
        escaped = slashes[within % 2 == 0] + 1
        self._escaped = bool(len(escaped) and escaped[-1] == len(given))
        escaped = escaped[: len(escaped) - self._escaped]
        coded[escaped[coded[escaped] == _QUOTED]] = 0
        return coded


class _Structure(NamedTuple):
    """A text and its marks.

    Attributes:
        text: The whole text.
        at: Position of each mark.
        marks: Code of each mark.
        separators: For each depth, indices of the marks that end members at that depth: commas and closing
            brackets.
        nan: Whether NaN, Infinity and -Infinity are accepted as numbers.
    """

    text: bytes
    at: Integers
    marks: Bytes
    separators: dict[int, Integers]
    nan: bool = True


async def _structure(text: bytes, max_depth: int, budget: RequestBudget, slicer: TimeSlicer) -> _Structure:
    """Find a text's marks, and check its depth and number of values before any value is made."""
    scanner, deep, before = _Scanner(), 0, (-1, 0)
    found_at, found_marks = bytearray(), bytearray()  # grown in place, so that nothing is joined in the end
    separators: defaultdict[int, bytearray] = defaultdict(bytearray)
    for start in range(0, len(text), _PIECE_BYTES):
        at, marks = scanner.marks(text[start : start + _PIECE_BYTES])
        if len(at):
            at += start
            depth = np.cumsum(_STEPS[marks], dtype=np.int32) + np.int32(deep)
            if depth.max() > max_depth:
                raise _too_deep(max_depth)
            if depth.min() < 0:
                raise InvalidRequest("expected JSON: a closing bracket has no opening one", field="body")
            values = _values(at, marks, before)
            budget.values(values, "body")
            budget.hold(values * _BYTES_A_VALUE_HELD)
            _add_separators(separators, marks, depth, len(found_marks))
            found_at += at.data
            found_marks += marks.data
            deep, before = int(depth[-1]), (int(at[-1]), int(marks[-1]))
        await slicer.breathe()
    if deep or scanner.in_string:
        raise InvalidRequest("expected JSON: it ends within a string, a list or an object", field="body")
    levels = {level: np.frombuffer(of_level, np.int64) for level, of_level in separators.items()}
    return _Structure(text, np.frombuffer(found_at, np.int64), np.frombuffer(found_marks, np.uint8), levels)


def _add_separators(
    separators: defaultdict[int, bytearray], marks: Bytes, depth: npt.NDArray[np.int32], first: int
) -> None:
    """Sort a piece's commas and closing brackets by depth, so that no level is scanned for another."""
    closes = marks > _OBJECT
    levels = ((depth + closes) * (closes | (marks == _COMMA))).astype(np.int16)  # 0 for all others
    for level in range(max(1, int(depth.min())), int(levels.max()) + 1):
        of_level = np.flatnonzero(levels == level)
        if len(of_level):
            separators[level] += (of_level + first).data


def _values(at: Integers, marks: Bytes, before: tuple[int, int]) -> int:
    """Return the number of values: one per comma, colon and opening bracket, less one per empty pair.

    It is at most half the text's bytes, and at least a quarter of the marks: a bracket never opens directly
    after another one closes, so empty pairs come with commas or colons.

    Args:
        at: Positions of the marks.
        marks: Codes of the marks.
        before: Position and code of the previous mark.

    Raises:
        InvalidRequest: A value follows another one without a comma.
    """
    opens = (marks == _LIST) | (marks == _OBJECT)
    closes = marks > _OBJECT
    again = opens[1:] & closes[:-1]
    if again.any() or (opens[0] and before[1] > _OBJECT):
        place = int(at[1:][again][0]) if again.any() else int(at[0])
        raise InvalidRequest(f"expected JSON: a comma is missing before byte {place}", field="body")
    empty = np.count_nonzero(opens[:-1] & closes[1:] & (np.diff(at) == 1))
    empty += bool(closes[0] and _opens(before[1]) and at[0] == before[0] + 1)
    return int(len(marks) - np.count_nonzero(closes) - empty)


def _opens(mark: int) -> bool:
    return mark in (_LIST, _OBJECT)


# ---- Parsing in slices ----


async def parse_in_slices(
    text: bytes, max_depth: int, budget: RequestBudget, slicer: TimeSlicer, *, nan: bool = True
) -> Json:
    """Parse a text of any size, with other requests served in between.

    Args:
        text: JSON text.
        max_depth: Largest nesting depth.
        budget: Limits on the cost of the request.
        slicer: Time slicer, entered by the caller.
        nan: Whether NaN, Infinity and -Infinity are accepted as numbers.

    Raises:
        InvalidRequest: The text is not JSON, or nested too deep.
        TooLarge: It has too many values.
        Overloaded: All requests together would hold too many bytes.
    """
    structure = (await _structure(text, max_depth, budget, slicer))._replace(nan=nan)
    try:
        return await _parsed(structure, _Span(0, len(text), 0, len(structure.at), 1), slicer)
    except RecursionError as error:  # only with limits.max_json_depth in the hundreds
        raise InvalidRequest("expected JSON with less nesting", field="body") from error


class _Span(NamedTuple):
    """A part of a text.

    Attributes:
        start: Position where it begins.
        stop: Position where it ends.
        first: Index of its first mark.
        last: Index after its last mark.
        level: Depth of its members.
    """

    start: int
    stop: int
    first: int
    last: int
    level: int


async def _parsed(structure: _Structure, span: _Span, slicer: TimeSlicer) -> Json:
    """Parse one value: at once if it is small, a scalar in pieces, a container part by part."""
    start, stop, first, last, level = span
    text, at, marks, _, nan = structure
    if first == last and stop - start > _PART_BYTES:
        return await _long_value(structure, start, stop, slicer)
    if first == last or (stop - start <= _PART_BYTES and last - first <= _PART_MARKS):
        return decode(text[start:stop], nan=nan)
    kind, edges = int(marks[first]), _edges(structure, span)
    if (
        not _opens(kind)
        or int(marks[last - 1]) != kind + _END
        or await _without_space(text, start, stop, slicer) != (at[first], at[last - 1] + 1)
        or (marks[edges[1:-1]] != _COMMA).any()
    ):
        raise InvalidRequest(f"expected JSON: no valid value at byte {start}", field="body")
    found: Json = [] if kind == _LIST else {}
    if last - first == 2:
        begin, end = await _without_space(text, int(at[first]) + 1, int(at[last - 1]), slicer)
        if begin == end:
            return found
    await slicer.breathe()
    try:
        for group in _groups(at[edges], edges):
            await _add_members(found, structure, edges[group], level, slicer)
            await slicer.breathe()
    except InvalidRequest:
        await given_back(found, slicer)
        raise
    return found


def _edges(structure: _Structure, span: _Span) -> Integers:
    """Return the indices of the marks between which a value's members are."""
    separators = structure.separators.get(span.level)
    if separators is None:
        return np.empty(0, np.int64)
    first, last = np.searchsorted(separators, (span.first, span.last))
    return np.concatenate(([span.first], separators[first:last]))


async def _long_value(structure: _Structure, start: int, stop: int, slicer: TimeSlicer) -> Json:
    """Parse a scalar: a long string in pieces; a long number is refused."""
    text = structure.text
    start, stop = await _without_space(text, start, stop, slicer)
    is_text = text[start : start + 1] == b'"'
    if stop - start <= (_PART_BYTES if is_text else _LONGEST_NUMBER):
        return decode(text[start:stop], nan=structure.nan)
    if not is_text:
        raise InvalidRequest(
            f"expected a text, or a number of at most {_LONGEST_NUMBER} characters, got {stop - start} "
            f"characters at byte {start}",
            field="body",
        )
    closing = stop - 1
    if not text.endswith(b'"', start, stop):
        raise InvalidRequest(
            f"expected JSON: the string at byte {start} has data after its end", field="body"
        )
    pieces, begin = list[str](), start + 1
    while begin < closing:
        end = _cut_of_text(text, begin, closing)
        pieces.append(decode(b'"' + text[begin:end] + b'"'))
        begin = end
        await slicer.breathe()
    return "".join(pieces)


async def _without_space(text: bytes, start: int, stop: int, slicer: TimeSlicer) -> tuple[int, int]:
    """Return where a value begins and ends within white space of any length."""
    while start < stop:
        piece = text[start : min(stop, start + _PIECE_BYTES)]
        start += len(piece) - len(piece.lstrip(_SPACE))
        if piece.lstrip(_SPACE):
            break
        await slicer.breathe()
    while start < stop:
        piece = text[max(start, stop - _PIECE_BYTES) : stop]
        stop -= len(piece) - len(piece.rstrip(_SPACE))
        if piece.rstrip(_SPACE):
            break
        await slicer.breathe()
    return start, stop


def _cut_of_text(text: bytes, begin: int, stop: int) -> int:
    """Return where a piece of a string may end: between two characters, and outside escapes."""
    end = begin + _TEXT_BYTES
    if end >= stop:
        return stop
    if b"\\" in text[max(begin, end - _LONGEST_ESCAPE) : end]:
        whole = _WHOLE_ESCAPES.match(text, begin, end)
        end = whole.end() if whole is not None and whole.end() > begin else end
    while begin + _TEXT_BYTES // 2 < end and text[end] & 0xC0 == 0x80:  # within a UTF-8 character
        end -= 1
    return end


def _groups(at: Integers, edges: Integers) -> Iterator[slice]:
    """Yield slices of edges whose members are parsed at once; a large member is a slice of its own."""
    current = 0
    while current < len(edges) - 1:
        by_bytes = int(np.searchsorted(at, at[current] + _PART_BYTES, "right")) - 1
        by_marks = int(np.searchsorted(edges, edges[current] + _PART_MARKS, "right")) - 1
        following = max(current + 1, min(by_bytes, by_marks))
        yield slice(current, following + 1)
        current = following


async def _add_members(
    found: Json, structure: _Structure, edges: Integers, level: int, slicer: TimeSlicer
) -> None:
    text, at, first, last = structure.text, structure.at, int(edges[0]), int(edges[-1])
    start, stop = int(at[first]) + 1, int(at[last])
    large = stop - start > _PART_BYTES or last - first > _PART_MARKS
    if len(edges) == 2 and large:
        await _add_large(found, structure, _Span(start, stop, first + 1, last, level + 1), slicer)
        return
    opening, closing = _BRACKETS[_LIST if isinstance(found, list) else _OBJECT]
    part = decode(opening + text[start:stop] + closing, nan=structure.nan)
    if isinstance(found, list):
        if len(part) != len(edges) - 1:
            raise InvalidRequest(f"expected JSON: a value is missing at byte {start}", field="body")
        found += part
    else:
        if not part:
            raise InvalidRequest(f"expected JSON: a name is missing at byte {start}", field="body")
        found.update(part)


async def _add_large(found: Json, structure: _Structure, span: _Span, slicer: TimeSlicer) -> None:
    if isinstance(found, list):
        found.append(await _parsed(structure, span, slicer))
        return
    start, stop, first, last, level = span
    colon = int(structure.at[first]) if first < last and structure.marks[first] == _COLON else -1
    if colon >= 0:
        check_name(colon - start, "body")
    name = decode(structure.text[start:colon]) if colon >= 0 else None
    if not isinstance(name, str):
        raise InvalidRequest(f"expected JSON: a name is missing at byte {start}", field="body")
    found[name] = await _parsed(structure, _Span(colon + 1, stop, first + 1, last, level), slicer)
