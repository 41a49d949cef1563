"""Embedder: makes vectors of contents. The contract of all kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.base.tensors import Array
from headrace.net.failures import Failure


@dataclass(frozen=True, slots=True)
class Embedded:
    """The result of embedding a batch of contents.

    Attributes:
        vectors: float32 ``[contents, dimension]``; the rows of failed contents are undefined.
        failures: Contents without a vector, by index.
    """

    vectors: Array
    failures: Mapping[int, Failure] = field(default_factory=dict)


class Embedder(Protocol):
    """Makes vectors of contents. Thread-safe.

    Attributes:
        dimension: Length of a vector.
        fingerprint: Digest of all files and settings that determine the vectors. Equal fingerprints mean
            equal vectors wherever they are made, up to float32 rounding.
    """

    dimension: int
    fingerprint: str

    def embed(self, contents: Sequence[bytes]) -> Embedded:
        """Make a vector of each content.

        A content that cannot be embedded does not fail the others.

        Args:
            contents: One or more contents: texts in UTF-8, addresses, or whatever the kind takes.

        Raises:
            Refused: No content could be embedded now; a retry may succeed.
            HeadraceError: The encoder itself is broken; no content is at fault.
        """

    def close(self) -> None:
        """Free all resources; called once, when the embedder is no longer used."""
