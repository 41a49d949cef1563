"""Publication: atomic creation of versions, as patches where possible, and deletion of old versions.

A failed publication leaves the served versions unchanged, and learning can go on: ``Publisher.publish``
raises an error with the reason, and the next publication may succeed.
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

from headrace.base.errors import ConfigError, HeadraceError, ModelError
from headrace.base.files import saying
from headrace.ctr.files.description import arrays_of, describe
from headrace.ctr.files.model_files import write_model
from headrace.ctr.files.quantization import Bits, quantize
from headrace.ctr.interfaces import Weights
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.features import Features
from headrace.training.releasing.patch import Patch, base_of, choose_base, find_patch, open_base, write_patch
from headrace.versions.layout import version_directories
from headrace.versions.manifest import SPACES_KEY, Signer, Writer, publish
from headrace.versions.pins_and_holds import read_control, undisturbed
from headrace.versions.retention import (
    delete_versions,
    hide_versions,
    read_named_versions,
    remove_hidden,
    sweep,
    versions_to_delete,
)

DEFAULT_KEEP = 5
"""Default number of versions to keep."""

WHOLE_EVERY = 24
"""Default of ``whole_every``: at least one of this many consecutive versions is whole."""

_CHUNK_ROWS = 2**18

_log = logging.getLogger(__name__)

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

    Another publisher may delete the version meanwhile; files that are gone are not counted.
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
