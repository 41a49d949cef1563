"""The model that a request in process addresses."""

from __future__ import annotations

from typing import NamedTuple


class ModelSpec(NamedTuple):
    """The model that a request addresses, like TensorFlow Serving's ModelSpec.

    Attributes:
        name: The model's name.
        version: Number of a version; None for the default version.
        label: Label that points at a version; not together with ``version``.
        signature: Name of the signature; the default one if empty.
    """

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""
