"""Format numbers: a file written by a newer headrace is refused before anything else in it is read.

Each file contains the number of its format; without one, the format is 1. The number grows with each change
that would make an older headrace misread the file or lose data. Additions that may be ignored do not change
the number. Files with smaller numbers are read.
"""

from __future__ import annotations

import msgspec

from headrace.base.errors import HeadraceError, NewerFormat


class _Header(msgspec.Struct):
    format: int = 1


def check_format(
    content: bytes | str, known: int, where: str, error: type[HeadraceError] = NewerFormat
) -> None:
    """Refuse JSON of a newer format; content that is not JSON, or has no number, is left to the caller.

    Args:
        content: The file's content.
        known: The newest format that can be read.
        where: Name of the file in the error.
        error: The class of the error to raise.

    Raises:
        HeadraceError: The format is newer; of the class ``error``.
    """
    try:
        found = msgspec.json.decode(content, type=_Header).format
    except (msgspec.DecodeError, ValueError, RecursionError):  # ValueError: not UTF-8
        return
    check_number(found, known, where, error)


def check_number(found: object, known: int, where: str, error: type[HeadraceError] = NewerFormat) -> None:
    """Refuse a format number larger than the known one; other types are left to the caller.

    Args:
        found: The number of the file's format.
        known: The newest format that can be read.
        where: Name of the file in the error.
        error: The class of the error to raise.

    Raises:
        HeadraceError: The number is larger; of the class ``error``.
    """
    if isinstance(found, int) and found > known:
        raise error(f"{where}: format {found} is newer than {known}; update headrace")
