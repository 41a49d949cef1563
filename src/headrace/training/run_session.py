"""Wiring of a run of ``headrace train``: stream, learner, loop, observers, and its output at the end.

Click models are published in headrace's own format, and Keras models, which the user's function creates, as
SavedModels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec
from numba.core import event

from headrace.base.errors import ConfigError, FailedPrecondition, HeadraceError, ModelError, needs_extra
from headrace.ctr import factory
from headrace.ctr.click_model import LearningModel
from headrace.ctr.model_settings import ModelSettings
from headrace.evaluation.progressive_validation import Windows
from headrace.stream.block import Features
from headrace.stream.schema import Schema
from headrace.training.options import TrainOptions, settings_of
from headrace.training.releasing.publishing import (
    SCHEMA_KEY,
    Publication,
    Publisher,
    Release,
    Training,
    check_destination,
    spaces_of,
)
from headrace.training.reporting.plot import Plot
from headrace.training.reporting.progress import JsonReport, Observer, Progress, TerminalReport, Warnings
from headrace.training.running.checkpoint import (
    find_checkpoint,
    only_run,
    rows_before,
    settings_with_saved_optimizers,
)
from headrace.training.running.learner import Learnable, Learner, Pending
from headrace.training.running.source import RenumberedBlocks, open_origin, open_stream
from headrace.training.running.trainer import RunPlan, Trainer
from headrace.versions.manifest import Signer
from headrace.versions.retention import server_settings

if TYPE_CHECKING:
    from headrace.training.keras.model import KerasModel


def _make_learner(
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
        model, release = _build_click_model(settings, features, publisher)
    else:
        model, release = build_keras_model(options.keras, features, settings.seed, publisher)
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
    if not settings.has_half_life:
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
        observers = stack.enter_context(metrics)  # before the stream, whose first row may take long
        origin = stack.enter_context(open_origin(options, checkpoint))
        skipped = origin.skip_rows if origin else 0 if options.continued else rows_before(checkpoint)
        reading = options.reading(settings.batch_rows, skipped)
        before = rows_before(checkpoint) - skipped
        if options.most_rows is not None:
            reading = replace(reading, most_rows=options.most_rows - before)
        source = origin.source if origin else options.input
        reader = stack.enter_context(open_stream(source, options.schema, reading))
        learner, release = _make_learner(options, settings, reader.features)
        plan = RunPlan(
            release=release,
            publish_every=options.publish_every,
            checkpoint=options.checkpoint,
            checkpoint_every=options.checkpoint_every,
            most_rows=options.most_rows,
            identity=identity_of(options, settings, reader.features.schema),
            origin=origin,
        )
        reports = Reports(output, errors, make_plot(options, settings), observers, windows=not options.json)
        stack.enter_context(announcing_compilation(errors, reports.clear))
        trainer = Trainer(learner, plan, reports.observers)
        if checkpoint is not None:
            reports.resume(trainer.resume(checkpoint, continued=options.continued or origin is not None))
        result = trainer.run(RenumberedBlocks(reader, before))
        error = reports.end(result.summary, result.error)
    return result.exit_code or int(error is not None)


@contextmanager
def announcing_compilation(errors: TextIO, clear: Callable[[], None]) -> Iterator[None]:
    """On a terminal, announce the first compilation of a kernel in this context.

    Args:
        errors: Stream to which it is written.
        clear: Clears the status line.
    """
    if not errors.isatty():
        yield
        return
    listener = _Compiling(errors, clear)
    with event.install_listener("numba:compile", listener):
        yield


class _Compiling(event.Listener):
    def __init__(self, errors: TextIO, clear: Callable[[], None]) -> None:
        self._errors = errors
        self._clear = clear
        self._said = False

    def on_start(self, happened: object) -> None:
        if not self._said:
            self._said = True
            self._clear()
            self._errors.write(
                "headrace: compiling kernels, which may take a minute; later runs reuse them\n"
            )
            self._errors.flush()

    def on_end(self, happened: object) -> None:
        """Do nothing: the progress line takes over."""


class Reports:
    """The output of a run.

    Attributes:
        observers: Observers of the run's events.
    """

    def __init__(
        self,
        output: TextIO,
        errors: TextIO,
        plot: Plot | None,
        others: Sequence[Observer] = (),
        *,
        windows: bool = True,
    ) -> None:
        """Choose the observers.

        Args:
            output: Stream for windows and the summary.
            errors: Stream for progress and warnings.
            plot: Plot to draw at the end; None for none.
            others: Further observers.
            windows: Whether to write windows. They are never written if both streams are terminals; the
                summary always is.
        """
        self._errors = errors
        self._plot = plot
        self._lines, self._terminal = JsonReport(output), TerminalReport(errors)
        observers: list[Observer] = [self._terminal] if errors.isatty() else []
        if windows and not (errors.isatty() and output.isatty()):
            observers.append(self._lines)
        self.observers: list[Observer] = [*observers, Warnings(errors), *([plot] if plot else []), *others]

    def resume(self, progress: Progress) -> None:
        """Continue the output of an earlier part of the run.

        Args:
            progress: Progress with the versions that were listed by the last window's line.
        """
        self._lines.resumed(progress)
        self._terminal.resumed(progress)

    def clear(self) -> None:
        """Clear the status line."""
        self._terminal.clear()

    def end(self, summary: Mapping[str, object], error: str | None) -> str | None:
        """Draw the plot, and write the summary and the error.

        Args:
            summary: Last line of the run.
            error: Error text of the run; None if it succeeded.

        Returns:
            The error text of the run, or else of drawing or writing; None if all succeeded.
        """
        self.clear()
        undrawn = self._undrawn()
        self._lines.write(summary)
        error = error or undrawn or self._lines.problem
        if error is not None:
            with contextlib.suppress(OSError):  # the exit code reports it, too
                self._errors.write(f"headrace: {error}\n")
        return error

    def _undrawn(self) -> str | None:
        """Draw the run; return the error text, or None."""
        if self._plot is not None and self._plot.points:
            try:
                self._plot.draw()
            except HeadraceError as error:
                return error.message
        return None


@contextmanager
def telemetry(host: str, port: int | None, errors: TextIO, *, publishes: bool) -> Iterator[list[Observer]]:
    """Serve Prometheus metrics, if a port is given.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 for any free port, None to serve nothing.
        errors: Stream to which the address is written.
        publishes: Whether the run publishes versions.

    Yields:
        The observers to notify of the run's events.
    """
    if port is None:
        yield []
        return
    from headrace.telemetry.metrics_port import answering  # noqa: PLC0415 - only when asked for
    from headrace.training.reporting.run_metrics import Telemetry  # noqa: PLC0415 - as above

    numbers = Telemetry(publishes=publishes)
    with answering(numbers, host, port, errors):
        yield [numbers]


def _build_click_model(
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
