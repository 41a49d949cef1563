"""Embedder: makes vectors of contents. The contract that every kind keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.tensors import Array


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no vector of a content.

    Attributes:
        reason: For people: what was expected, what came; a dead letter keeps it.
        is_final: Whether trying again cannot help (not found, no image, too large), rather than might (no
            connection, a busy server).
    """

    reason: str
    is_final: bool


@dataclass(frozen=True, slots=True)
class Embedded:
    """What came of a batch of contents.

    Attributes:
        vectors: float32 ``[contents, dimension]``; the rows of those that failed mean nothing.
        failures: By place, those that have no vector.
    """

    vectors: Array
    failures: Mapping[int, Failure] = field(default_factory=dict)


class Embedder(Protocol):
    """Makes vectors of contents; may be called by several threads at once.

    Attributes:
        dimension: How many numbers a vector has.
        fingerprint: What changes when its vectors do: a digest of all files and settings that they depend on.
            Vectors of one fingerprint are equal wherever they are made, to float32's rounding.
    """

    dimension: int
    fingerprint: str

    def embed(self, contents: Sequence[bytes]) -> Embedded:
        """Make a vector of each content.

        One content that cannot be embedded fails alone.

        Args:
            contents: At least one: texts in UTF-8, addresses, whatever the kind takes.

        Raises:
            Refused: None could be embedded now; all may be later.
            HeadraceError: The encoder itself is broken; no content is at fault.
        """

    def close(self) -> None:
        """Free what it holds; called once, when nothing uses it any more."""
