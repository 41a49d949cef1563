"""Publication: atomic creation of versions, as patches where possible, and deletion of old versions.

A failed publication leaves the served versions unchanged, and learning can go on: ``Publisher.publish``
raises an error with the reason, and the next publication may succeed.

A server loads the newest version in a directory, whatever its model. So ``check_destination`` checks, before
anything is learnt, that the directory holds neither another model's versions nor several models.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from headrace.base.errors import ConfigError, HeadraceError, LoadError, ModelError, listed
from headrace.base.files import saying
from headrace.ctr.click_model import Weights
from headrace.ctr.files.model_files import MODEL_FILE, arrays_of, describe, read_description, write_model
from headrace.ctr.files.quantization import Bits, quantize
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.block import Features
from headrace.stream.schema import Field, Schema
from headrace.training.releasing.patch import Patch, base_of, choose_base, find_patch, open_base, write_patch
from headrace.versions.layout import model_directories, version_directories
from headrace.versions.manifest import SPACES_KEY, Signer, Writer, publish, read_manifest
from headrace.versions.pins_and_holds import read_control, undisturbed
from headrace.versions.retention import (
    delete_versions,
    hide_versions,
    read_named_versions,
    remove_hidden,
    sweep,
    versions_to_delete,
)

_log = logging.getLogger(__name__)

DEFAULT_KEEP = 5
"""Default number of versions to keep."""

WHOLE_EVERY = 24
"""Default of ``whole_every``: at least one of this many consecutive versions is whole."""

_CHUNK_ROWS = 2**18

_Patched = tuple[Weights, Patch]


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of training at the publication of a version, stored in its manifest under ``training``.

    Attributes:
        rows: Number of rows of the stream learnt from.
        stream_bytes: Number of bytes read from the stream.
        newest_timestamp: Newest timestamp of a row, in microseconds since 1970; None if the stream has none.
        metrics: Metrics of the last window, or of all rows before the first one ends; None if undefined.
    """

    rows: int
    stream_bytes: int = 0
    newest_timestamp: int | None = None
    metrics: dict[str, float | None] = {}


@dataclass(frozen=True, slots=True)
class Publication:
    """A published version.

    Attributes:
        version: Its number.
        path: Its directory.
        base: Number of its base; None if it is whole.
        size_bytes: Total size of its files in bytes.
        seconds: Duration of the publication.
    """

    version: int
    path: Path
    base: int | None
    size_bytes: int
    seconds: float


Release = Callable[[Training], Callable[[], Publication]]
"""Function that takes a version's content from the model, and returns a function that publishes it.

The returned function may run in any thread. With Keras, the version is already published, and the function
only returns the result."""


class Publisher:
    """Publisher of one model's versions. Several publishers may share a directory.

    Attributes:
        model_directory: Directory of the model's versions.
        sign: Signer of each version; None, the initial value, to sign none.
    """

    def __init__(
        self,
        model_directory: Path,
        *,
        keep: int = DEFAULT_KEEP,
        quantize: Bits | None = None,
        patch: bool = False,
        whole_every: int = WHOLE_EVERY,
        server_configs: tuple[Path, ...] = (),
    ) -> None:
        """Check the settings; nothing is written yet.

        Args:
            model_directory: Directory of the model's versions; created at publication if it is missing.
            keep: Number of newest versions to keep, 0 for all; needed versions are kept in addition.
            quantize: Bits per weight of tables; None for 32.
            patch: Whether versions may be patches of earlier ones.
            whole_every: At least one of this many consecutive versions is whole.
            server_configs: Configuration files of servers; the versions that they label or pin are kept. Read
                at each publication.

        Raises:
            ConfigError: A setting is invalid.
        """
        if keep < 0:
            raise ConfigError(f"keep: expected the number of versions to keep, or 0 for all, got {keep}")
        if quantize not in (None, 16, 8):
            raise ConfigError(f"quantize: expected 16 or 8 bits, got {quantize}")
        self.model_directory = model_directory
        self._keep = keep
        self._bits = quantize
        self._patch = patch
        self._whole_every = whole_every
        self._server_configs = server_configs
        self.sign: Signer | None = None

    def publish(
        self, settings: ModelSettings, features: Features, weights: Weights, training: Training
    ) -> Publication:
        """Publish a version atomically: it appears complete and synced to disk, or not at all.

        Args:
            settings: The model's settings.
            features: Layout of the model's rows.
            weights: The weights, from ``LearningModel.strip()``.
            training: Progress of training.

        Raises:
            FailedPrecondition: The version cannot be written: a full disk, no permission.
            ModelError: A weight is not finite; the last published version stays in service.
            ConfigError: The weights do not fit the settings and features.
        """
        _check_finite(weights)

        def write() -> tuple[Path, int | None]:
            found = self._find_patch(settings, features, weights) if self._patch else None
            path = self._write(settings, features, found or self._stored(weights), training)
            if found is None:
                return path, None
            if (self.model_directory / str(found[1].base)).is_dir():
                return path, found[1].base
            orphan = int(path.name)  # another publisher has deleted the base meanwhile
            path = self._write(settings, features, self._stored(weights), training)
            delete_versions(self.model_directory, [orphan])
            return path, None

        return self._published(write)

    def publish_files(self, write: Writer, signature: str, metadata: Mapping[str, object]) -> Publication:
        """Publish a version whose files the caller writes; see ``publish``.

        Args:
            write: Writes the files into an empty directory.
            signature: The version's inputs and outputs, for people.
            metadata: Further data for the manifest.

        Raises:
            FailedPrecondition: The version cannot be written: a full disk, no permission.
        """
        directory, sign = self.model_directory, self.sign
        return self._published(
            lambda: (publish(write, directory, signature=signature, metadata=metadata, sign=sign), None)
        )

    def _published(self, write: Callable[[], tuple[Path, int | None]]) -> Publication:
        """Publish by a function that returns the version's directory and base; then delete old versions."""
        started = time.perf_counter()
        with saying(f"no version can be published in {self.model_directory}"):
            self.model_directory.mkdir(parents=True, exist_ok=True)
            sweep(self.model_directory)
            path, base = write()
        size_bytes = size_of(path)
        self._delete_old()
        return Publication(int(path.name), path, base, size_bytes, time.perf_counter() - started)

    def _stored(self, weights: Weights, like: Weights | None = None) -> Weights:
        return weights if self._bits is None else quantize(weights, self._bits, like)

    def _find_patch(self, settings: ModelSettings, features: Features, weights: Weights) -> _Patched | None:
        """Return the stored weights and their patch; None if there is no base, or the patch is too large."""
        number = choose_base(_bases(self.model_directory), self._whole_every)
        base = None if number is None else open_base(self.model_directory, number)
        if base is None:
            return None
        stored = self._stored(weights, like=base.weights)
        patch = find_patch(base, describe(settings, features, stored), arrays_of(stored))
        return (stored, patch) if patch is not None and patch.worth_it else None

    def _write(
        self, settings: ModelSettings, features: Features, content: Weights | _Patched, training: Training
    ) -> Path:
        def write(draft: Path) -> None:
            if isinstance(content, Weights):
                write_model(draft, settings, features, content)
            else:
                write_patch(draft, content[1], arrays_of(content[0]))

        metadata: dict[str, object] = {
            "training": msgspec.to_builtins(training),
            "settings": msgspec.to_builtins(settings),
            "table_bits": self._bits or 32,
            "base": None if isinstance(content, Weights) else content[1].base,
            **spaces_of(features),
        }
        said = _signature(settings, features)
        return publish(write, self.model_directory, signature=said, metadata=metadata, sign=self.sign)

    def _delete_old(self) -> None:
        """Delete all versions except the newest ``keep``, those that the operator named, and their bases."""
        if self._keep == 0:
            return
        try:
            with saying(f"{self.model_directory} cannot be read"):
                remove_hidden(self._hide_old())
        except HeadraceError as error:
            _log.warning("old versions are kept, because it is unknown which are needed: %s", error.message)

    def _hide_old(self) -> dict[int, Path]:
        named = read_named_versions(self.model_directory, self._server_configs)
        if not versions_to_delete(_bases(self.model_directory), self._keep, named):
            return {}
        with undisturbed(self.model_directory):  # no version is pinned or held meanwhile
            named |= read_control(self.model_directory).named_numbers()
            doomed = versions_to_delete(_bases(self.model_directory), self._keep, named)
            return hide_versions(self.model_directory, doomed)


def size_of(version: Path) -> int:
    """Return the total size of a version's files in bytes.

    Another publisher may delete the version meanwhile; the result is then too small.
    """
    total = 0
    with suppress(OSError):
        for file in version.rglob("*"):
            total += file.stat().st_size if file.is_file() else 0
    return total


def spaces_of(features: Features) -> dict[str, object]:
    """Return a manifest's entry on the archive spaces that a model was trained on; empty without any."""
    return {SPACES_KEY: dict(features.schema.spaces)} if features.schema.spaces else {}


def _bases(model_directory: Path) -> dict[int, int | None]:
    return {number: base_of(path) for number, path in version_directories(model_directory).items()}


def _check_finite(weights: Weights) -> None:
    for name, array in arrays_of(weights).items():
        if array.dtype != np.float32:
            continue
        for start in range(0, len(array), _CHUNK_ROWS):
            chunk = array[start : start + _CHUNK_ROWS]  # max and min propagate NaN
            if chunk.size and not (np.isfinite(chunk.max()) and np.isfinite(chunk.min())):
                raise ModelError(
                    f"{name} holds a weight that is not a finite number; nothing was published. "
                    "Start a new run with a lower learning rate"
                )


def _signature(settings: ModelSettings, features: Features) -> str:
    return (
        f"{settings.kind}: {len(features.categorical)} categorical fields, {features.dense_width} dense "
        "numbers -> probability"
    )


SCHEMA_KEY = "schema"
"""Manifest key of the rows' schema, for models whose own files do not contain it."""

_SAVED_MODEL = "saved_model.pb"
_MOST_NAMED = 5


def check_destination(directory: Path, schema: Schema, *, is_keras: bool, is_replaced: bool) -> None:
    """Check that a directory is one model's, and that its newest readable version is of the model to publish.

    Args:
        directory: The model's directory; it need not exist.
        schema: Schema of the rows that the run learns from.
        is_keras: Whether the run publishes SavedModels; otherwise click models.
        is_replaced: Whether the versions may follow those of another model.

    Raises:
        ConfigError: The directory holds models' directories, or its newest readable version is of another
            model.
        FailedPrecondition: The directory, or a version in it, cannot be listed.
    """
    with saying(f"no version can be published in {directory}"):
        if not directory.is_dir():
            return
        versions = version_directories(directory)
        models = model_directories(directory)
    if models:
        raise ConfigError(
            f"publish: {directory} holds the directories of models ({listed(models, _MOST_NAMED)}), but "
            f"versions belong in the directory of one model; name it, such as --publish {directory / 'NAME'}"
        )
    if is_replaced:
        return
    for number, path in reversed(versions.items()):
        why = _why_another(path, schema, is_keras)
        if why is not None:
            if why:
                raise ConfigError(
                    f"publish: version {number} in {directory} is of another model: {why}. A server would "
                    "serve the new one in its place; publish into another directory, or set --replace"
                )
            return


def _why_another(version: Path, schema: Schema, is_keras: bool) -> str | None:
    """Return why a version is of another model; "" if not, None if empty, damaged or of a newer format."""
    wanted = _SAVED_MODEL if is_keras else MODEL_FILE
    with saying(f"{version} cannot be read"):
        names = sorted(path.name for path in version.iterdir())
    if not names:
        return None
    if wanted not in names:
        kind = "Keras model" if is_keras else "click model"
        return f"it is not a {kind}, but holds {listed(names, _MOST_NAMED)}"
    try:
        there = _schema_of(version) if is_keras else read_description(version).schema
    except LoadError:  # damaged or of a newer format: earlier versions decide
        return None
    if there is None:
        return "it does not contain the schema of its rows"
    return _difference(there, schema)


def _schema_of(version: Path) -> Schema | None:
    manifest = read_manifest(version)
    said = manifest.metadata.get(SCHEMA_KEY) if manifest is not None else None
    try:
        return None if said is None else msgspec.convert(said, Schema)
    except (msgspec.ValidationError, ConfigError):
        return None


def _difference(there: Schema, new: Schema) -> str:
    """Describe how the inputs of requests differ, or return ""; the layout of tables does not count."""
    before, after = _inputs(there), _inputs(new)
    gone, more = before.keys() - after.keys(), after.keys() - before.keys()
    others = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    said = (("it has", gone), ("it does not have", more), ("it takes other values for", others))
    return ", ".join(f"{words} {listed(sorted(names), _MOST_NAMED)}" for words, names in said if names)


def _inputs(schema: Schema) -> dict[str, object]:
    return {one.name: _asked(one) for one in schema.of("categorical", "dense", "vector")}


def _asked(field: Field) -> object:
    """Return the properties of a field that determine its input in requests."""
    if field.role == "categorical":
        return field.role, field.keys == "bucket", field.text, field.values, field.context
    return field.role, field.size if field.role == "vector" else 1, field.context
