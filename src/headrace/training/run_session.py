"""Wiring of a run of ``headrace train``: stream, learner, loop and reports."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import msgspec

from headrace.ctr.model_settings import ModelSettings
from headrace.evaluation.windows import Windows
from headrace.stream.features import Features
from headrace.stream.schema import Schema
from headrace.training.model_toml import settings_of
from headrace.training.options import TrainOptions
from headrace.training.releasing import click_release, keras_release
from headrace.training.releasing.destination import check_destination
from headrace.training.releasing.publishing import Publisher, Release
from headrace.training.reporting.plot import Plot
from headrace.training.reporting.reports import Reports, telemetry, told_of_compiling
from headrace.training.running.checkpoint import only_run
from headrace.training.running.delayed_labels import Pending
from headrace.training.running.learner import Learnable, Learner
from headrace.training.running.resumption import find_checkpoint, rows_before, settings_with_saved_optimizers
from headrace.training.running.source import RenumberedBlocks, open_stream
from headrace.training.running.trainer import RunPlan, Trainer
from headrace.training.topic_origin import open_origin
from headrace.versions.manifest import Signer
from headrace.versions.retention import server_settings


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
        FailedPrecondition: The publication directory cannot be read.
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


def make_plot(options: TrainOptions, settings: ModelSettings) -> Plot | None:
    """Create the plot of a run; None without ``--plot``.

    Args:
        options: Options of the run.
        settings: Settings of a click model.
    """
    kind = settings.kind if options.keras is None else "keras"
    return Plot(options.plot, f"headrace train · {kind}") if options.plot else None


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


def train(options: TrainOptions, output: TextIO, errors: TextIO) -> int:
    """Learn from a stream.

    Args:
        options: Options of the run.
        output: Stream for windows and the summary.
        errors: Stream for progress and warnings.

    Returns:
        The exit code.

    Raises:
        HeadraceError: The run could not start.
    """
    with ExitStack() as stack:
        if options.checkpoint is not None:
            stack.enter_context(only_run(options.checkpoint))
        checkpoint = find_checkpoint(options.checkpoint, errors, resume=options.resume)
        settings = settings_of(settings_with_saved_optimizers(options.model, checkpoint), "model")
        metrics = telemetry(
            options.metrics_host, options.metrics_port, errors, publishes=options.publish is not None
        )
        told = stack.enter_context(metrics)  # before the stream, whose first row may take long
        origin = stack.enter_context(open_origin(options, checkpoint))
        skipped = origin.skip_rows if origin else 0 if options.continued else rows_before(checkpoint)
        reading = options.reading(settings.batch_rows, skipped)
        before = rows_before(checkpoint) - skipped
        if options.most_rows is not None:
            reading = replace(reading, most_rows=options.most_rows - before)
        source = origin.source if origin else options.input
        reader = stack.enter_context(open_stream(source, options.schema, reading))
        learner, release = make_learner(options, settings, reader.features)
        plan = RunPlan(
            release=release,
            publish_every=options.publish_every,
            checkpoint=options.checkpoint,
            checkpoint_every=options.checkpoint_every,
            most_rows=options.most_rows,
            identity=identity_of(options, settings, reader.features.schema),
            origin=origin,
        )
        reports = Reports(output, errors, make_plot(options, settings), told, windows=not options.json)
        stack.enter_context(told_of_compiling(errors, reports.clear))
        trainer = Trainer(learner, plan, reports.observers)
        if checkpoint is not None:
            reports.resume(trainer.resume(checkpoint, continued=options.continued or origin is not None))
        result = trainer.run(RenumberedBlocks(reader, before))
        error = reports.end(result.summary, result.error)
    return result.exit_code or int(error is not None)
