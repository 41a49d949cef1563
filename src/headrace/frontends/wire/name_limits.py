"""Limit the length of names in requests: of signatures, inputs, features, datatypes, and request ids."""

from __future__ import annotations

from headrace.base.errors import InvalidRequest

LONGEST_NAME_BYTES = 16 * 1024
"""Longest name accepted, short enough to be looked up, printed or echoed in one step."""


def check_name(size: int, field: str) -> None:
    """Check the length of a name before it is read.

    Args:
        size: Length in bytes or characters.
        field: Field that contains it, for the error.

    Raises:
        InvalidRequest: The name is too long.
    """
    if size > LONGEST_NAME_BYTES:
        raise InvalidRequest(
            f"expected a name of at most {LONGEST_NAME_BYTES} bytes, got {size}; send long texts as values",
            field=field,
        )
