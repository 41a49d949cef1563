"""Compiled kernels that read lines of Vowpal Wabbit's text format, and hash their features.

The format is that of ``parse_example_text.cc`` in VW's sources. Text that VW reads otherwise than written,
with a warning, is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.base.tensors import Array
from headrace.jit.kernel_cache import kernel, part
from headrace.runtimes.vw_word_kernels import (
    ALL_ONES,
    BAR,
    IS_NUMBER,
    IS_TEXT,
    IS_WRONG,
    SPACE,
    hash_name,
    murmur,
    read_exact,
    read_plain,
    read_value,
)

CONSTANT_NAMESPACE = 128
"""The namespace of the constant; no example may use it."""

NO_BAR, LINE_END, NAMELESS, RESERVED, WEIGHT, EMPTY_VALUE, NUMBER, INFINITE, HEAD = range(1, 10)
"""Reasons why a line is refused."""

_TAB, _LINE_FEED, _RETURN, _QUOTE, _COLON = b"\t\n\r':"
_CONSTANT = np.uint64(11650396)


class Reading(NamedTuple):
    """How lines are read.

    Attributes:
        ignored: Whether namespaces are left out, by first byte: bool ``[256]``.
        seed: Seed of the hash of namespaces.
        hash_all: Whether names that are numbers are hashed, rather than added to the namespace's hash.
        constant: Whether each example has the constant feature.
    """

    ignored: Array
    seed: int
    hash_all: bool
    constant: bool


class Features(NamedTuple):
    """The features of some rows, grouped by namespace: filled by ``read_lines``.

    Attributes:
        hashes: Hash of each feature: uint32.
        values: Its value: float32.
        groups: First byte of the namespaces that a row has, in order of appearance: uint8.
        group_ends: End of their features: int64.
        row_ends: End of each row's groups: int64 ``[rows]``.
        bases: The number that each row's sum starts with: float32 ``[rows]``.
    """

    hashes: Array
    values: Array
    groups: Array
    group_ends: Array
    row_ends: Array
    bases: Array

    @classmethod
    def room_for(cls, size: int, rows: int) -> Features:
        """Return arrays for all features that so many bytes of text can have.

        Args:
            size: Bytes of text.
            rows: Number of rows.
        """
        most = size // 2 + 2 * rows  # a feature takes two bytes; each row has the constant
        return cls(
            np.empty(most, np.uint32),
            np.empty(most, np.float32),
            np.empty(most, np.uint8),
            np.empty(most, np.int64),
            np.empty(rows, np.int64),
            np.empty(rows, np.float32),
        )


class Room(NamedTuple):
    """Room for the features of one row.

    Attributes:
        hashes: Their hashes: uint32.
        values: Their values: float32.
        groups: First bytes of their namespaces: uint8.
        sizes: Zeros by first byte: int64 ``[256]``.
    """

    hashes: Array
    values: Array
    groups: Array
    sizes: Array

    @classmethod
    def of(cls, longest: int) -> Room:
        """Return room for a row.

        Args:
            longest: Bytes of the longest row.
        """
        most = longest // 2 + 1
        return cls(
            np.empty(most, np.uint32),
            np.empty(most, np.float32),
            np.empty(most, np.uint8),
            np.zeros(256, np.int64),
        )


# ---- Lines ----------------------------------------------------------------------------------------


@part(inline="always")
def _is_blank(byte: Any) -> bool:
    return byte in (SPACE, _TAB)


@part()
def _end_of(text: Any, at: int, end: int, at_colon: bool, at_bar: bool) -> int:
    """Return the end of a word: the next space, or colon or bar if those end it."""
    while at < end:
        byte = text[at]
        if _is_blank(byte) or (at_colon and byte == _COLON) or (at_bar and byte == BAR):
            break
        at += 1
    return at


@part()
def _base(text: Any, at: int, bar: int) -> tuple[int, Any]:
    """Return the reason to refuse what is before the first bar, or 0, and the base that it names.

    It is ``label importance base tag``, all optional; the tag touches the bar or starts with a quote.
    """
    for place in range(at, bar):
        if text[place] == _TAB:
            at = place + 1  # VW leaves out what is before the first tab
            break
    words, start, third, third_end = 0, at, 0, 0
    while at < bar:
        if text[at] == SPACE:
            at += 1
            continue
        start = at
        while at < bar and text[at] != SPACE:
            at += 1
        words += 1
        if words == 3:
            third, third_end = start, at
    if words and (text[bar - 1] != SPACE or text[start] == _QUOTE):
        words -= 1
    if words < 3:
        return 0, np.float32(0)
    is_number, base = read_plain(text, third, third_end)
    if not is_number:
        is_number, base = read_exact(text, third, third_end)
    return (0 if words == 3 and is_number and np.isfinite(base) else HEAD), base


@part()
def _bar_of(text: Any, at: int, end: int) -> tuple[int, int, int]:
    """Return the reason to refuse a line at once, or 0, where, and the position of its first bar.

    The position of an example without features is the line's end.
    """
    bar, is_empty = end, True
    for place in range(at, end):
        byte = text[place]
        if byte in (_LINE_FEED, _RETURN):
            return LINE_END, place, end
        if byte == BAR and bar == end:
            bar = place
        is_empty = is_empty and _is_blank(byte)
    if bar == end and not is_empty:
        return NO_BAR, at, end
    return 0, at, bar


@part()
def _namespace(text: Any, at: int, end: int, reading: Any) -> tuple[int, int, Any, Any, Any]:
    """Read a namespace's name and weight after a bar.

    Returns:
        The reason to refuse it, or 0; its end, or the problem's position; first byte; hash; and weight.
    """
    seed, weight = np.uint64(reading.seed), np.float32(1)
    if at == end or _is_blank(text[at]) or text[at] == BAR:
        hashed = murmur(text, at, at, seed) if reading.seed else np.uint64(0)
        return 0, at, np.uint8(SPACE), hashed, weight
    stop = _end_of(text, at, end, True, True)
    group, hashed = text[at], hash_name(text, at, stop, seed, reading.hash_all)
    if stop == at:
        return NAMELESS, at, group, hashed, weight
    if group == CONSTANT_NAMESPACE:
        return RESERVED, at, group, hashed, weight
    if stop < end and text[stop] == _COLON:
        start, stop = stop + 1, _end_of(text, stop + 1, end, False, True)
        kind, weight = read_value(text, start, stop, end)
        if start == stop or kind != IS_NUMBER:
            return WEIGHT, start, group, hashed, weight
    return 0, stop, group, hashed, weight


@part()
def _feature(text: Any, at: int, end: int, space: Any, hash_all: bool) -> tuple[int, int, Any, Any, bool]:
    """Read a feature.

    Args:
        text: The lines.
        at: Its start.
        end: The line's end.
        space: Hash and weight of its namespace, and the number of features without a name before it.
        hash_all: As in ``Reading``.

    Returns:
        The reason to refuse it, or 0; its end, or the problem's position; hash; value; whether it is unnamed.
    """
    seed, value, unnamed = space
    stop = _end_of(text, at, end, True, True)
    hashed, has_name = seed + np.uint64(unnamed), stop > at
    if has_name:
        hashed = hash_name(text, at, stop, seed, hash_all)
    if stop == end or text[stop] != _COLON:
        return 0, stop, hashed, value, False
    start, stop = stop + 1, _end_of(text, stop + 1, end, False, True)
    if start == stop:
        return EMPTY_VALUE, start, hashed, value, False
    kind, number = read_value(text, start, stop, end)
    if kind == IS_WRONG:
        return NUMBER, start, hashed, value, False
    if kind == IS_TEXT:
        stop = _end_of(text, start, end, False, False)
        first = hashed if has_name else hash_name(text, at, at, seed, hash_all)
        return 0, stop, hash_name(text, start, stop, first, hash_all), np.float32(1), False
    value = np.float32(value * number)
    if not np.isfinite(value):
        return INFINITE, start, hashed, value, False
    return 0, stop, hashed, value, not has_name


@part()
def _features(text: Any, at: int, end: int, reading: Any, found: Any) -> tuple[int, int, int]:
    """Read the features after the first bar in order: returns a reason or 0, a position, and their number."""
    hashes, values, groups = found
    count = 0
    while at < end:  # at a bar
        wrong, at, group, seed, weight = _namespace(text, at + 1, end, reading)
        if wrong:
            return wrong, at, 0
        unnamed = 0
        while at < end and text[at] != BAR:
            if _is_blank(text[at]):
                at += 1
                continue
            space = (seed, weight, unnamed)
            wrong, at, hashed, value, is_unnamed = _feature(text, at, end, space, reading.hash_all)
            if wrong:
                return wrong, at, 0
            unnamed += is_unnamed
            if value != 0 and not reading.ignored[group]:
                hashes[count], values[count], groups[count] = hashed & ALL_ONES, value, group
                count += 1
    return 0, 0, count


@part()
def _group(count: int, found: Any, features: Any, place: Any, sizes: Any) -> Any:
    """Write a row's features group by group.

    Args:
        count: Number of its features.
        found: Their hashes, values and groups.
        features: Receives them.
        place: Number of features and of groups before them.
        sizes: 256 zeros, as which it is left.

    Returns:
        As ``place``, after them.
    """
    hashes, values, groups = found
    at, group_at = place
    first = group_at
    for index in range(count):
        if sizes[groups[index]] == 0:
            features.groups[group_at] = groups[index]
            group_at += 1
        sizes[groups[index]] += 1
    for index in range(first, group_at):
        group = features.groups[index]
        size, sizes[group] = sizes[group], at  # from now on, where its next feature goes
        at += size
        features.group_ends[index] = at
    for index in range(count):
        to = sizes[groups[index]]
        features.hashes[to], features.values[to] = hashes[index], values[index]
        sizes[groups[index]] += 1
    for index in range(first, group_at):
        sizes[features.groups[index]] = 0
    return at, group_at


@kernel()
def read_lines(
    text: Array, ends: Array, reading: Reading, features: Features, room: Room, wrong: Array
) -> None:
    """Read the features of all rows.

    Args:
        text: The lines, one after the other: uint8.
        ends: The end of each: int64 ``[rows]``.
        reading: How to read them.
        features: Receives the features.
        room: Room for one of the rows.
        wrong: Receives the reason to refuse each row, or 0, and the position in it: int64 ``[rows, 2]``.
    """
    found = room.hashes, room.values, room.groups
    place = (0, 0)
    start = 0
    for row in range(len(ends)):
        end = ends[row]
        while end > start and (text[end - 1] == _LINE_FEED or text[end - 1] == _RETURN):
            end -= 1
        count = 0
        features.bases[row] = 0
        reason, at, bar = _bar_of(text, start, end)
        if not reason and bar < end:
            at = start
            reason, features.bases[row] = _base(text, start, bar)
            if not reason:
                reason, at, count = _features(text, bar, end, reading, found)
        wrong[row, 0], wrong[row, 1] = reason, at - start
        place = _group(count, found, features, place, room.sizes)
        if reading.constant:
            at, group_at = place
            features.hashes[at], features.values[at] = _CONSTANT, 1
            features.groups[group_at], features.group_ends[group_at] = CONSTANT_NAMESPACE, at + 1
            place = (at + 1, group_at + 1)
        features.row_ends[row] = place[1]
        start = ends[row]
