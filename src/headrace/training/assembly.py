"""What a run is made of: its learner and model, how that is released, what must be the same to go on."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.ctr.settings import ModelSettings
from headrace.stream.features import Features
from headrace.stream.schema import Schema
from headrace.training.options import TrainOptions
from headrace.training.releasing import click_release, keras_release
from headrace.training.releasing.destination import check_destination
from headrace.training.releasing.publishing import Publisher, Release
from headrace.training.running.delayed import Pending
from headrace.training.running.learner import Learnable, Learner
from headrace.training.scoring.windows import Windows
from headrace.versions.manifest import Signer
from headrace.versions.named import server_settings


def make_learner(
    options: TrainOptions, settings: ModelSettings, features: Features
) -> tuple[Learner, Release | None]:
    """Make the learner, and say how versions are made of its model.

    Args:
        options: What is asked.
        settings: What the model is, if it is a click model.
        features: The layout of the rows.

    Raises:
        ConfigError: There can be no such model, or its versions would follow those of another one.
    """
    model: Learnable
    publisher = _publisher(options, features.schema)
    if options.keras is None:
        model, release = click_release.build(settings, features, publisher)
    else:
        model, release = keras_release.build(options.keras, features, settings.seed, publisher)
    delay = options.label_delay_seconds
    pending = Pending(delay, options.pending_bytes) if delay else None
    return Learner(model, Windows(options.window_rows, options.slices), pending), release


def identity_of(options: TrainOptions, settings: ModelSettings, schema: Schema) -> dict[str, object]:
    """What must be the same for a checkpoint to fit.

    Args:
        options: What is asked.
        settings: What the model is, if it is a click model.
        schema: The stream's.
    """
    model: dict[str, object] = msgspec.to_builtins(settings)
    del model["threads"]
    if settings.kind != "mdn":
        del model["components"]  # the same
    if not settings.halves:
        del model["half_life_rows"]  # which checkpoints did not say before it was a setting
    return {
        "model": model if options.keras is None else options.keras,
        "schema": msgspec.to_builtins(schema),
        "window": options.window_rows,
        "label delay": options.label_delay_seconds,
    }


def _publisher(options: TrainOptions, schema: Schema) -> Publisher | None:
    if options.publish is None:
        return None
    is_keras = options.keras is not None
    check_destination(options.publish, schema, is_keras=is_keras, is_replaced=options.replace)
    for file in options.server_configs:
        server_settings(file, options.publish)  # what is wrong with it is told before anything is learnt
    publisher = Publisher(
        options.publish,
        keep=options.keep,
        quantize=options.quantize,
        patch=options.patch,
        server_configs=options.server_configs,
    )
    publisher.sign = _signer(options.signing_key)
    return publisher


def _signer(key: Path | None) -> Signer | None:
    if key is None:
        return None
    from headrace.versions.signing import signer  # noqa: PLC0415 - an extra

    return signer(key)
