"""Names in requests: of signatures, inputs, features, datatypes, and what a client calls its request."""

from __future__ import annotations

from headrace.errors import InvalidRequest

LONGEST_NAME_BYTES = 16 * 1024
"""The longest name that is taken: what looks a name up, prints or echoes it is done with it at once."""


def check_name(size: int, field: str) -> None:
    """Refuse what is too long for a name, before it is looked at.

    Args:
        size: How many bytes or characters it has.
        field: Where it is, for the error.

    Raises:
        InvalidRequest: It is too long.
    """
    if size > LONGEST_NAME_BYTES:
        raise InvalidRequest(
            f"expected a name of at most {LONGEST_NAME_BYTES} bytes, got {size}; send long texts as values",
            field=field,
        )
