"""Creation of models for training, and their release.

Click models are published in headrace's own format, and Keras models, which the user's function creates, as
SavedModels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headrace.base.errors import ConfigError, FailedPrecondition, ModelError, needs_extra
from headrace.ctr import factory
from headrace.ctr.interfaces import LearningModel
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.features import Features
from headrace.training.releasing.publishing import (
    SCHEMA_KEY,
    Publication,
    Publisher,
    Release,
    Training,
    spaces_of,
)

if TYPE_CHECKING:
    from headrace.training.keras.model import KerasModel


def build_click_model(
    settings: ModelSettings, features: Features, publisher: Publisher | None
) -> tuple[LearningModel, Release | None]:
    """Create a click model, and the function that releases it; None without a publisher.

    Args:
        settings: The model's settings.
        features: Layout of the rows.
        publisher: Publisher of versions; None to publish nothing.

    Raises:
        ConfigError: The settings do not fit the features, or memory is exhausted.
    """
    try:
        model = factory.create(settings, features)
    except MemoryError as error:
        raise ConfigError(
            f"model: there is not enough memory for tables of {features.rows} rows ({error}); give fields "
            "fewer buckets, or the model fewer factors"
        ) from error
    if publisher is None:
        return model, None

    def release(training: Training) -> Callable[[], Publication]:
        weights = model.strip()
        return lambda: publisher.publish(model.settings, model.features, weights, training)

    return model, release


def build_keras_model(
    function: str, features: Features, seed: int, publisher: Publisher | None
) -> tuple[KerasModel, Release | None]:
    """Build a Keras model, and the function that releases it; None without a publisher.

    Args:
        function: ``FILE.py:FUNCTION``.
        features: Layout of the rows.
        seed: Random seed of fresh weights.
        publisher: Publisher with the directory and the number of versions to keep; None to publish nothing.

    Raises:
        ConfigError: TensorFlow is not installed, or the function does not build a model of these features.
    """
    try:
        from headrace.training.keras.model import KerasModel, load_build  # noqa: PLC0415 - an extra, slow to import
    except ImportError as error:
        raise needs_extra("keras", "keras", error) from error
    model = KerasModel(load_build(function), features, seed=seed)
    if publisher is None:
        return model, None

    def write(training: Training) -> Publication:
        schema = msgspec.to_builtins(features.schema)
        training_now = msgspec.to_builtins(training)
        metadata = {"training": training_now, SCHEMA_KEY: schema, **spaces_of(features)}
        signature = f"keras: {len(features.categorical)} categorical fields -> probability"
        return publisher.publish_files(model.write, signature, metadata)

    def release(training: Training) -> Callable[[], Publication]:
        # Write in the learner's thread: TensorFlow reads the variables that learning changes.
        try:
            publication = write(training)
        except (FailedPrecondition, ModelError) as error:
            failure = error  # ``fail`` raises it later, where the trainer reports it; learning goes on
        else:
            return lambda: publication

        def fail() -> Publication:
            raise failure

        return fail

    return model, release
