"""Numbers of formats: what a newer headrace wrote is refused as that, before anything else in it is read.

Each file says the number of its format. It grows with each change after which a headrace that does not know
of it would misread the file, or lose something in it; what may be left unread grows no number. Without one,
the format is the first. What was written with a smaller number is read.
"""

from __future__ import annotations

import msgspec

from headrace.errors import HeadraceError, NewerFormat


class _Header(msgspec.Struct):
    format: int = 1


def check_format(
    content: bytes | str, known: int, where: str, error: type[HeadraceError] = NewerFormat
) -> None:
    """Refuse JSON of a newer format; what is no JSON, or says no number, is left to whoever reads it all.

    Args:
        content: The file.
        known: The newest format that is read.
        where: What to call it in the error.
        error: What to raise.

    Raises:
        HeadraceError: It is of a newer format; of the kind that was asked for.
    """
    try:
        found = msgspec.json.decode(content, type=_Header).format
    except (msgspec.DecodeError, ValueError, RecursionError):  # a ValueError: not UTF-8
        return
    check_number(found, known, where, error)


def check_number(found: object, known: int, where: str, error: type[HeadraceError] = NewerFormat) -> None:
    """Refuse a number that is larger than what is known; what is no number is left to whoever reads it.

    Args:
        found: The number of the file's format.
        known: The newest format that is read.
        where: What to call the file in the error.
        error: What to raise.

    Raises:
        HeadraceError: It is larger; of the kind that was asked for.
    """
    if isinstance(found, int) and found > known:
        raise error(f"{where}: format {found} is newer than {known}; update headrace")
