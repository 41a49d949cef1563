"""Creation of click models for training, and their publication in headrace's own format."""

from __future__ import annotations

from collections.abc import Callable

from headrace.base.errors import ConfigError
from headrace.ctr import factory
from headrace.ctr.interfaces import LearningModel
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.features import Features
from headrace.training.releasing.publishing import Publication, Publisher, Release, Training


def build(
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
