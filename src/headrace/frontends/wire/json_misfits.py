"""Parts of errors for wrong JSON bodies that the protocols share.

This code runs only for requests that are refused.
"""

from __future__ import annotations

import re

import msgspec

from headrace.base.errors import InvalidRequest

_INDEX = re.compile(r"\[(\d+)\]")
_BINARY = re.compile(rb"(?!\xef\xbb\xbf|\s*[\[{\"])[\s\S]{0,8}?[^\t\n\r -~]")

_FORM = re.compile(rb"--[^\r\n]{1,70}\r\ncontent-disposition:", re.IGNORECASE)


def binary_instead(body: bytes, way_out: str) -> InvalidRequest | None:
    """Return the error for a body that is binary data, such as an image, or a form; None for any other body.

    Args:
        body: The body.
        way_out: How the protocol carries binary data.
    """
    if _FORM.match(body):
        said = f"expected JSON, got a form (multipart/form-data, as `curl -F` sends it); {way_out}"
        return InvalidRequest(said, field="body")
    if not _BINARY.match(body):
        return None
    return InvalidRequest(f"expected JSON, got binary data; {way_out}", field="body")


def place_of(error: msgspec.ValidationError) -> list[int]:
    """Return the indices in the path with which msgspec's messages end: 3 and 0 in ``- at `$[3][0]```."""
    return [int(index) for index in _INDEX.findall(str(error).rpartition(" - at ")[2])]
