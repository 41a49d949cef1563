"""Wiring of a run of ``headrace train``: stream, learner, loop and reports. It contains no decisions."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TextIO

from headrace.training.assembly import identity_of, make_learner
from headrace.training.model_toml import settings_of
from headrace.training.options import TrainOptions
from headrace.training.reporting.compiling import told_of_compiling
from headrace.training.reporting.plot import Plot
from headrace.training.reporting.reports import Reports, telemetry
from headrace.training.running.checkpoint import only_run
from headrace.training.running.resumption import find_checkpoint, gone_on_with, rows_before
from headrace.training.running.source import Continued, open_stream
from headrace.training.running.trainer import RunPlan, Trainer
from headrace.training.topic_origin import open_origin


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
        settings = settings_of(gone_on_with(options.model, checkpoint), "model")
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
        plot = Plot(options.plot, f"headrace train · {settings.kind}") if options.plot else None
        reports = Reports(output, errors, plot, told, windows=not options.json)
        stack.enter_context(told_of_compiling(errors))
        trainer = Trainer(learner, plan, reports.observers)
        if checkpoint is not None:
            trainer.resume(checkpoint, continued=options.continued or origin is not None)
        result = trainer.run(Continued(reader, before))
        error = reports.end(result.summary, result.error)
    return result.exit_code or int(error is not None)
