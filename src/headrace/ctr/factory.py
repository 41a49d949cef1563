"""Constructors of click models; only this module knows which class implements which settings."""

from __future__ import annotations

from headrace.ctr.click_model import LearningModel, Scorer, Weights
from headrace.ctr.model_settings import ModelSettings
from headrace.ctr.models.missing import check_names
from headrace.stream.block import Features


def create(settings: ModelSettings, features: Features) -> LearningModel:
    """Create an untrained model.

    Raises:
        ConfigError: The settings do not fit the features.
    """
    check_names(settings, features)
    model = _create(settings, features)
    if not features.exact_slots:
        return model
    from headrace.ctr.models.vocabulary import AdmittingModel  # noqa: PLC0415 - compiled kernels, only when used

    return AdmittingModel(model)


def _create(settings: ModelSettings, features: Features) -> LearningModel:
    if settings.online:
        from headrace.ctr.learning.online import OnlineModel  # noqa: PLC0415 - compiled kernels, only when used

        return OnlineModel(settings, features)
    from headrace.ctr.learning.batched import BatchedModel  # noqa: PLC0415 - as above

    return BatchedModel(settings, features)


def scorer(settings: ModelSettings, features: Features, weights: Weights) -> Scorer:
    """Create a model that only predicts.

    Raises:
        ConfigError: The weights do not fit the settings and features.
    """
    from headrace.ctr.serving.scoring import WeightsScorer  # noqa: PLC0415 - as above

    return WeightsScorer(settings, features, weights)
