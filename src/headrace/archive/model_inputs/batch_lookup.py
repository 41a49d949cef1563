"""Batched lookup of a model's inputs, in pinned space versions.

All spaces are looked up at once. Keys that are missing, late or failed get the value for a
missing one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.space_reader import Lookup, SpaceReader
from headrace.archive.model.catalog import SpaceVersion
from headrace.archive.model_inputs.assembly import Question, check_fits
from headrace.base.errors import (
    ConfigError,
    HeadraceError,
    InvalidRequest,
    InvalidRows,
    NotFound,
    Unavailable,
)
from headrace.base.tensors import Array
from headrace.config import InputSource
from headrace.model.servable import TensorSpec

_log = logging.getLogger(__name__)


class Asker:
    """Looks inputs up for one version of a model, from any thread."""

    def __init__(
        self,
        archive: Archive,
        name: str,
        inputs: Sequence[tuple[str, InputSource, TensorSpec]],
        versions: Mapping[str, int],
        patience_seconds: float,
    ) -> None:
        """Find the space versions to look up.

        Args:
            archive: The archive.
            name: Name of the model, for quotas and logs.
            inputs: The model's inputs: name, source, and what the model takes.
            versions: Pinned space versions; other spaces use their default, as it moves.
            patience_seconds: Longest wait for a remote store.

        Raises:
            ConfigError: A space or version does not exist, or does not fit the model.
            Unavailable: A space is not known yet: its store has not answered, or its table has no columns.
        """
        self._archive, self._name, self._inputs = archive, name, inputs
        self._versions, self._patience_seconds = versions, patience_seconds
        self._asked: dict[str, SpaceVersion] = {}
        self._oov: dict[str, Array] = {}
        self._refused: set[tuple[str, int]] = set()
        for space in dict.fromkeys(source.space for _, source, _ in inputs):
            reader = self._first(space)
            self._check(space, reader.version)
            self._asked[space], self._oov[space] = reader.version, reader.cache.oov

    def most_rows(self) -> tuple[int, str]:
        """Return the largest number of rows per batch, and the space that limits it."""
        spaces = self._archive.config.spaces
        return min((spaces[space].max_keys, space) for space in self._asked)

    def answers(self, asked: Sequence[Question]) -> list[Lookup]:
        """Answer questions; all lookups are started before any is waited for.

        Raises:
            InvalidRows: A key is too long.
        """
        begun = [self._begin(question) for question in asked]
        waited = [(one.reader, one.lookup) for one in begun if one.reader is not None and one.lookup.waits]
        if waited:
            patience = waited[0][0].patience(self._patience_seconds)
            wait_for([read for _, lookup in waited for read in lookup.waits], patience)
            for reader, lookup in waited:
                reader.end(lookup, patience)
        return [_for_each(one) for one in begun]

    def _begin(self, question: Question) -> _Begun:
        space = question.space
        keys, places = question.keys, None
        if len(place_of := dict.fromkeys(keys, 0)) < len(keys):  # rows of one user share a key
            keys = list(place_of)
            place_of = {key: place for place, key in enumerate(keys)}
            places = np.array([place_of[key] for key in question.keys])
        reader = None
        try:
            reader = self._reader(space)
            return _Begun(reader, reader.begin(keys, self._name), places)
        except InvalidRequest:
            raise _too_long(question, self._archive.config.spaces[space].max_key_bytes) from None
        except Exception as error:  # noqa: BLE001 - a store may be third-party code; answer all the same
            _log.debug("%s: keys could not be looked up in %s", self._name, space, exc_info=error)
            return _Begun(None, self._nothing(space, len(keys)), places)

    def _reader(self, space: str) -> SpaceReader:
        """Return the reader of a space; that of the last version if a new default does not fit."""
        reader = self._archive.reader(space, self._versions.get(space, 0))
        number, last = reader.version.number, self._asked[space].number
        if number == last:
            return reader
        if (space, number) not in self._refused:
            try:
                self._check(space, reader.version)
            except ConfigError as error:
                self._refused.add((space, number))
                _log.warning(
                    "%s keeps using version %d of the space %s: %s", self._name, last, space, error.message
                )
            else:
                self._asked[space], self._oov[space] = reader.version, reader.cache.oov
                return reader
        return self._archive.reader(space, last)

    def _nothing(self, space: str, keys: int) -> Lookup:
        version, oov = self._asked[space], self._oov[space]
        vectors = np.repeat(oov[None], keys, axis=0)
        return Lookup(vectors, np.zeros(keys, np.uint64), version.number, version.columns, oov=oov)

    def _first(self, space: str) -> SpaceReader:
        version = self._versions.get(space, 0)
        try:
            return self._archive.reader(space, version)
        except NotFound as error:
            if space in self._archive.config.spaces and not version:
                raise Unavailable(error.message) from error  # the first file loaded defines its columns
            trained = f"; this version of the model was trained on version {version}" if version else ""
            raise ConfigError(f"inputs: {error.message}{trained}") from error

    def _check(self, space: str, version: SpaceVersion) -> None:
        for name, source, spec in self._inputs:
            if source.space == space:
                check_fits(name, source, spec, version)


class _Begun(NamedTuple):
    """A started lookup.

    Attributes:
        reader: Reader that started it; None if it needs no ``end``.
        lookup: Result, with each key once.
        places: For each key of the question, its row in the result; None if they are the same.
    """

    reader: SpaceReader | None
    lookup: Lookup
    places: Array | None


def _for_each(begun: _Begun) -> Lookup:
    lookup, places = begun.lookup, begun.places
    if places is None:
        return lookup
    return replace(lookup, vectors=lookup.vectors[places], written=lookup.written[places])


def _too_long(question: Question, longest: int) -> HeadraceError:
    """Return the error for the rows whose keys are too long."""
    wrong = {}
    for row, key in zip(question.rows.tolist(), question.keys, strict=True):
        if (size := len(key.encode())) > longest:
            reason = f": expected a key of up to {longest} bytes of UTF-8, got {size}"
            wrong[row] = (question.key, reason)
    return (
        InvalidRows.of(wrong)
        if wrong
        else InvalidRequest(f"expected keys of up to {longest} bytes, got others", field=question.key)
    )
