"""A model with inputs that come from an archive; requests send keys in place of them.

All keys of a batch are looked up at once, in one lookup per space and key input, in pinned space versions. A
missing, late, failed or too old value is replaced as the settings say, and is never an error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headrace.archive.lookup.archive import Archive
from headrace.archive.lookup.reports import InputTotals
from headrace.archive.lookup.space_reader import Lookup, SpaceReader
from headrace.archive.model.catalog import SpaceVersion
from headrace.archive.model_inputs.assembly import NO_KEY, ModelInputs, Question, check_fits, len_of
from headrace.base.clock import unix_milliseconds
from headrace.base.errors import (
    ConfigError,
    HeadraceError,
    InvalidRequest,
    InvalidRows,
    NotFound,
    NotLoadable,
    Unavailable,
    shown,
)
from headrace.base.tensors import STRING, Array, Tensors
from headrace.batching.batch_queue import declared_outputs
from headrace.batching.request import VERSION, WRITTEN
from headrace.config import InputSource, ModelConfig
from headrace.model.packed_columns import PackedTensors
from headrace.model.servable import DEFAULT_SIGNATURE, Servable, Signature, TensorSpec, takes_packed

_log = logging.getLogger(__name__)


class InputLookups:
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


_INTEGER = np.dtype(np.int64)


class LookupServable:
    """A model, with the archive that provides some of its inputs.

    Attributes:
        platform: Platform of the model.
        signatures: Signatures of the model, with keys in place of the inputs from the archive.
        may_block: Whether a call may wait, for a remote store or in the model.
        is_native: Whether the model computes without the GIL.
        takes_packed: Whether texts may stay packed: the model accepts them so, and no text comes from the
            archive. Keys become objects for the lookup.
    """

    def __init__(
        self,
        servable: Servable,
        archive: Archive,
        name: str,
        config: ModelConfig,
        versions: Mapping[str, int],
    ) -> None:
        """Put an archive in front of a model.

        Args:
            servable: The model; closed with this object.
            archive: The archive.
            name: Name of the model.
            config: Settings of the model.
            versions: Space versions that this version of the model was trained on.

        Raises:
            NotLoadable: Settings, model and spaces do not fit together, or a pinned space version is gone.
            Unavailable: A space is not known yet: its store has not answered, or its table has no columns.
        """
        self._model = servable
        self.platform = servable.platform
        self.may_block: bool = getattr(servable, "may_block", False) or not archive.store.is_local
        self.is_native: bool = getattr(servable, "is_native", False)
        try:
            self._ways = _ways(servable, config.inputs, versions)
            self.takes_packed = takes_packed(servable) and not any(
                spec.dtype == STRING for way in self._ways.values() for spec in way.inputs.specs.values()
            )
            inputs = [
                (input_name, config.inputs[input_name], spec)
                for way in self._ways.values()
                for input_name, spec in way.inputs.specs.items()
            ]
            self._lookups = InputLookups(archive, name, inputs, versions, config.batching.max_batch_seconds)
            self._check_rows(config)
        except ConfigError as error:
            raise NotLoadable(error.message) from error
        self.signatures: Mapping[str, Signature] = {
            one.name: self._ways[one.name].public if one.name in self._ways else one
            for one in servable.signatures.values()
        }
        totals = archive.of_models
        self._totals = {one: totals.setdefault((name, one), InputTotals()) for one in config.inputs}

    def predict(self, inputs: Tensors, signature: str = DEFAULT_SIGNATURE) -> Tensors:
        """Answer a whole batch.

        Args:
            inputs: All inputs of the signature, checked.
            signature: Name of the signature.

        Returns:
            The model's outputs; and for each input from the archive ``INPUT.written`` and ``INPUT.version``,
            int64 ``[rows]``.

        Raises:
            InvalidRows: A key is not UTF-8 or too long; or as raised by the model.
        """
        return self.predict_padded(inputs, signature, _rows_of(inputs))

    def predict_padded(self, inputs: Tensors, signature: str, real_rows: int) -> Tensors:
        """Answer a whole batch that may end with padding rows.

        Args:
            inputs: As in ``predict``.
            signature: As in ``predict``.
            real_rows: Number of rows before the padding; only these are counted.
        """
        way = self._ways.get(signature)
        if way is None:
            return self._model.predict(inputs, signature)
        asked = way.inputs.questions(inputs)
        answers = self._lookups.answers(asked)
        rows = _rows_of(inputs)
        filled = way.inputs.filled(asked, answers, rows, unix_milliseconds(), real_rows=real_rows)
        if isinstance(inputs, PackedTensors):
            taken: Tensors = inputs.with_numbers(way.kept, filled.inputs)
        else:
            taken = {name: inputs[name] for name in way.kept} | filled.inputs
        outputs = dict(self._model.predict(taken, signature))
        for name, counted in filled.counts.items():  # only now: a batch that fails is retried row by row
            self._totals[name].add(counted)
        for name, (version, written) in filled.looked_up.items():
            outputs[name + WRITTEN], outputs[name + VERSION] = written.view(np.int64), version
        return outputs

    def declared_outputs(self, signature: Signature, outputs: Tensors, rows: int) -> Tensors:
        """Return the checked outputs of a signature, and the lookup's results, even if undeclared.

        Args:
            signature: The signature that was called.
            outputs: Result of ``predict``.
            rows: Number of input rows.

        Raises:
            ModelError: An output is not as the model declares it.
        """
        declared = dict(declared_outputs(signature, outputs, rows))
        if signature.name in self._ways:
            for name in self._ways[signature.name].inputs.sources:
                for kind in (WRITTEN, VERSION):
                    declared[name + kind] = outputs[name + kind]
        return declared

    def close(self) -> None:
        """Close the model, but not the archive, which others share."""
        self._model.close()

    def _check_rows(self, config: ModelConfig) -> None:
        most, space = self._lookups.most_rows()
        rows = config.batching.max_batch_rows
        if rows > most:
            expected = f"at most {most}, as spaces.{space}.max_keys of the archive says"
            raise ConfigError(f"batching.max_batch_rows: expected {expected}, got {rows}")


def _rows_of(inputs: Tensors) -> int:
    """Return the number of rows in a batch, without making objects of its texts."""
    return inputs.padded_rows if isinstance(inputs, PackedTensors) else len_of(inputs)


@dataclass(frozen=True)
class _Way:
    """A signature of the model that needs the archive.

    Attributes:
        public: Signature that requests are checked against.
        inputs: Inputs that come from the archive.
        kept: Names of the request's inputs that the model itself takes.
    """

    public: Signature
    inputs: ModelInputs
    kept: tuple[str, ...]


def _ways(
    servable: Servable, sources: Mapping[str, InputSource], versions: Mapping[str, int]
) -> dict[str, _Way]:
    """Return the signatures that need the archive, by name.

    Raises:
        ConfigError: An input or a key does not fit the model.
    """
    default = servable.signatures[DEFAULT_SIGNATURE]
    for name, source in sources.items():
        if name not in default.input_names:
            known = ", ".join(map(shown, default.input_names))
            raise ConfigError(f"inputs.{name}: the model has no such input; it takes {known}")
        if source.key in sources:
            raise ConfigError(f"inputs.{name}.key: {source.key!r} comes from the archive itself")
    ways = {}
    for signature in servable.signatures.values():
        its = {spec.name: sources[spec.name] for spec in signature.inputs if spec.name in sources}
        if its:
            ways[signature.name] = _way(signature, its, versions)
    return ways


def _way(signature: Signature, sources: Mapping[str, InputSource], versions: Mapping[str, int]) -> _Way:
    specs = {spec.name: spec for spec in signature.inputs if spec.name in sources}
    kept = {spec.name: spec for spec in signature.inputs if spec.name not in sources}
    public = dict(kept)
    for name, source in sources.items():
        public[source.key] = _key(name, source, public.get(source.key), specs[name])
    for source in sources.values():  # a key is a context input only if all inputs made of it are
        if source.key not in kept:
            fed = [specs[name] for name, one in sources.items() if one.key == source.key]
            spec = public[source.key]
            is_context = all(one.context for one in fed)
            public[source.key] = TensorSpec(spec.name, spec.dtype, (), is_context, spec.absent)
    outputs = {spec.name: spec for spec in signature.outputs}
    for name, source in sources.items():
        for kind in (WRITTEN, VERSION):
            if name + kind in outputs:
                raise ConfigError(f"inputs.{name}: the model has an output {name + kind!r} of its own")
            if source.answer:
                outputs[name + kind] = TensorSpec(name + kind, _INTEGER, ())
    made = Signature(
        signature.name,
        tuple(public.values()),
        tuple(outputs.values()),
        kind=signature.kind,
        rows=signature.rows,
        examples=signature.examples,
        sample=_sample(signature, public, {source.key for source in sources.values()}),
    )
    return _Way(made, ModelInputs(sources, versions, specs), tuple(kept))


def _key(name: str, source: InputSource, there: TensorSpec | None, fed: TensorSpec) -> TensorSpec:
    """Return the input that holds the keys: another source's, one of the model's own, or a new one."""
    is_text = source.key_dtype == "text"
    if there is None:
        dtype, absent = (STRING, "") if is_text else (_INTEGER, NO_KEY)
        return TensorSpec(source.key, dtype, (), fed.context, absent)
    where = f"inputs.{name}.key"
    if (there.dtype == STRING) != is_text or (not is_text and there.dtype.kind != "i"):
        expected = "texts" if is_text else "integers"
        raise ConfigError(f"{where}: expected {expected}, as key_dtype says, got {there}")
    if math.prod(size or 0 for size in there.shape) != 1:
        raise ConfigError(f"{where}: expected one value per row, got {there}")
    return there


def _sample(
    signature: Signature, public: Mapping[str, TensorSpec], keys: set[str]
) -> dict[str, Array] | None:
    """Return a sample row without keys, so that warm-up queues nothing; None if a shape is unknown."""
    sample = {}
    for name, spec in public.items():
        if signature.sample is not None and name in signature.sample and name not in keys:
            sample[name] = signature.sample[name]
            continue
        if None in spec.shape:
            return None
        none = b"" if spec.dtype == STRING else NO_KEY if name in keys and spec.dtype.kind == "i" else 0
        sample[name] = np.full((1, *(size or 0 for size in spec.shape)), none, spec.dtype)
    return sample
