"""Embedder: makes vectors of contents. The contract of all kinds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.base.errors import ConfigError, InvalidRequest, ModelError
from headrace.base.files import open_file
from headrace.base.tensors import Array
from headrace.net.content_failures import Failure

# Fingerprints: one digest of all files and settings that determine vectors.


def fingerprint(kind: str, settings: Mapping[str, object], files: Iterable[Path]) -> str:
    """Return a digest of everything that determines vectors.

    The digest depends on the order of files, not on their location or names.

    Args:
        kind: Kind of embedder.
        settings: JSON-compatible settings that change vectors.
        files: Files that the embedder reads.

    Returns:
        64 hexadecimal digits.

    Raises:
        ConfigError: A file cannot be read.
    """
    told = {"kind": kind, "settings": settings, "files": [_digest(file) for file in files]}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _digest(file: Path) -> str:
    try:
        with open_file(file) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error


# Isolate failures of an encoder: a content that fails does not fail its batch.


def embed_with_isolation(
    runs: Iterable[Sequence[int]], encode: Callable[[Sequence[int]], object], probe: Callable[[], object]
) -> dict[int, Failure]:
    """Encode contents in batches. If a batch fails, encode its contents one by one.

    Args:
        runs: Batches, each with the indices of its contents.
        encode: Encodes the contents with some indices.
        probe: Encodes an input that has worked before; called if nothing else succeeds.

    Returns:
        The contents that fail alone, by index.

    Raises:
        ModelError: Everything fails, including the probe, so no content is at fault.
    """
    failures: dict[int, Failure] = {}
    worked, last = False, None
    for run in runs:
        try:
            encode(run)
            worked = True
        except (ModelError, InvalidRequest) as error:
            last = error
            failures |= _one_by_one(run, encode, error)
            worked = worked or any(place not in failures for place in run)
    if last is not None and not worked:
        try:
            probe()
        except (ModelError, InvalidRequest) as error:
            raise ModelError(f"the encoder fails on every input: {error.message}") from last
    return failures


def _one_by_one(
    run: Sequence[int], encode: Callable[[Sequence[int]], object], error: ModelError | InvalidRequest
) -> dict[int, Failure]:
    if len(run) == 1:
        return {run[0]: Failure(f"the encoder fails: {error.message}", is_final=True)}
    failures = {}
    for place in run:
        try:
            encode([place])
        except (ModelError, InvalidRequest) as alone:
            failures[place] = Failure(f"the encoder fails: {alone.message}", is_final=True)
    return failures


@dataclass(frozen=True, slots=True)
class Embedded:
    """The result of embedding a batch of contents.

    Attributes:
        vectors: float32 ``[contents, dimension]``; the rows of failed contents are undefined.
        failures: Failures of items without a vector, by index.
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
        """Make a vector of each item.

        An item that cannot be embedded does not fail the batch.

        Args:
            contents: One or more items: texts in UTF-8, URLs, or whatever the kind takes.

        Raises:
            Refused: Nothing could be embedded now; a retry may succeed.
            HeadraceError: The encoder itself is broken; no item is at fault.
        """

    def close(self) -> None:
        """Free all resources; called once, when the embedder is no longer used."""
