"""Keras models in the loop: made of the user's function, and published as SavedModels."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headrace.disk import saying
from headrace.errors import ConfigError, FailedPrecondition, ModelError
from headrace.stream.features import Features
from headrace.training.releasing.destination import SCHEMA_KEY
from headrace.training.releasing.publishing import Publication, Publisher, Release, Training, spaces_of
from headrace.versions.manifest import publish

if TYPE_CHECKING:
    from headrace.training.keras.model import KerasModel


def build(
    function: str, features: Features, seed: int, publisher: Publisher | None
) -> tuple[KerasModel, Release | None]:
    """Build a Keras model, and say how versions are made of it.

    Args:
        function: ``FILE.py:FUNCTION``.
        features: The layout of the rows.
        seed: What fresh weights are drawn from.
        publisher: What knows where versions go and how many stay; None to publish nothing.

    Raises:
        ConfigError: TensorFlow is not there, or the function builds no model of these features.
    """
    try:
        from headrace.training.keras.model import KerasModel, load_build  # noqa: PLC0415 - an extra, slow to import
    except ImportError as error:
        raise ConfigError(f"keras: {error}; pip install 'headrace[tensorflow]'") from error
    model = KerasModel(load_build(function), features, seed=seed)
    if publisher is None:
        return model, None
    model_directory = publisher.model_directory

    def write(training: Training) -> Publication:
        started = time.perf_counter()
        schema = msgspec.to_builtins(features.schema)
        training_now = msgspec.to_builtins(training)
        metadata = {"training": training_now, SCHEMA_KEY: schema, **spaces_of(features)}
        signature = f"keras: {len(features.categorical)} categorical fields -> probability"
        with saying(f"no version can be published in {model_directory}"):
            path = publish(
                model.write, model_directory, signature=signature, metadata=metadata, sign=publisher.sign
            )
            size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            deleted = tuple(publisher.delete_old())
        return Publication(int(path.name), path, None, size_bytes, time.perf_counter() - started, deleted)

    def release(training: Training) -> Callable[[], Publication]:
        # Written at once, by the learner's thread: TensorFlow would read variables that learning changes.
        try:
            publication = write(training)
        except (FailedPrecondition, ModelError) as error:
            failure = error  # told where others fail: learning goes on, and the next version may succeed
        else:
            return lambda: publication

        def fail() -> Publication:
            raise failure

        return fail

    return model, release
