"""Numbers among the options: each has bounds, and a wrong one is refused in one line that names the option.

What a type raises ends the verb as any other wrong setting does. argparse would answer its own errors with
all that could have been asked for, and the line in question last.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.config import checks

MOST_OF_A_STREAM = 2**63 - 1
"""The most rows that a stream can have."""

_LONGEST_TOLD = 40


def whole(option: str, *, least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """A type for argparse: whole numbers.

    Args:
        option: Its name, without dashes in front.
        least: The smallest one; None where whoever gets it checks that.
        most: The largest one; None likewise.

    Returns:
        What reads a word.
    """

    def read(word: str) -> int:
        try:
            number = int(word)
        except ValueError:  # no digits, or thousands of them
            raise checks.wrong(option, "a whole number", cut(word)) from None
        if least is not None and most is not None:
            checks.whole(option, number, least=least, most=most)
        return number

    return read


def whole_or_auto(option: str) -> Callable[[str], int | str]:
    """A type for argparse: whole numbers, or the word ``auto``.

    Args:
        option: Its name, without dashes in front.

    Returns:
        What reads a word.
    """

    def read(word: str) -> int | str:
        try:
            return word if word == "auto" else int(word)
        except ValueError:
            raise checks.wrong(option, "a whole number, or auto", cut(word)) from None

    return read


def seconds(option: str, *, most: float) -> Callable[[str], float]:
    """A type for argparse: times.

    Args:
        option: Its name, without dashes in front.
        most: The longest one.

    Returns:
        What reads a word.
    """

    def read(word: str) -> float:
        number = _float(option, word, "seconds, 0 or more")
        checks.seconds(option, number, most=most)
        return number

    return read


def fraction(option: str) -> Callable[[str], float]:
    """A type for argparse: numbers from 0 to 1.

    Args:
        option: Its name, without dashes in front.

    Returns:
        What reads a word.
    """

    def read(word: str) -> float:
        number = _float(option, word, "a number from 0 to 1")
        checks.fraction(option, number)
        return number

    return read


def above_zero(option: str, *, most: float) -> Callable[[str], float]:
    """A type for argparse: numbers above zero.

    Args:
        option: Its name, without dashes in front.
        most: The largest one.

    Returns:
        What reads a word.
    """
    expected = f"a number, more than 0 and at most {most:g}"

    def read(word: str) -> float:
        number = _float(option, word, expected)
        if not 0 < number <= most:
            raise checks.wrong(option, expected, number)
        return number

    return read


def _float(option: str, word: str, expected: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return number
    raise checks.wrong(option, expected, cut(word))


def cut(word: str) -> str:
    """A word as an error repeats it."""
    return word if len(word) <= _LONGEST_TOLD else f"{word[:_LONGEST_TOLD]}…"
