"""Assembly of a run: its learner and model, its releases, and the identity of its checkpoints."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.ctr.model_settings import ModelSettings
from headrace.evaluation.windows import Windows
from headrace.stream.features import Features
from headrace.stream.schema import Schema
from headrace.training.options import TrainOptions
from headrace.training.releasing import click_release, keras_release
from headrace.training.releasing.destination import check_destination
from headrace.training.releasing.publishing import Publisher, Release
from headrace.training.running.delayed_labels import Pending
from headrace.training.running.learner import Learnable, Learner
from headrace.versions.manifest import Signer
from headrace.versions.protected_versions import server_settings


def make_learner(
    options: TrainOptions, settings: ModelSettings, features: Features
) -> tuple[Learner, Release | None]:
    """Create the learner, and the function that releases its model; None to release nothing.

    Args:
        options: Options of the run.
        settings: Settings of a click model; a Keras model takes its seed from them.
        features: Layout of the rows.

    Raises:
        ConfigError: The model cannot be created, or its versions would follow those of another model.
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
    """Return the properties that a run and a checkpoint must have in common.

    Args:
        options: Options of the run.
        settings: Settings of a click model.
        schema: Schema of the stream.
    """
    model: dict[str, object] = msgspec.to_builtins(settings)
    del model["threads"]
    if settings.kind != "mdn":
        del model["components"]  # absent from checkpoints that predate the setting
    if not settings.halves:
        del model["half_life_rows"]  # absent from checkpoints that predate the setting
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
        server_settings(file, options.publish)  # report errors before learning starts
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
    from headrace.versions.signatures import signer  # noqa: PLC0415 - an extra

    return signer(key)
