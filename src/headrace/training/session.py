"""What ``headrace train`` does: puts stream, model, loop and reports together. It wires and never decides."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import TextIO, cast

import msgspec
from numba.core import event

from headrace.ctr import factory
from headrace.ctr.files.quantization import Bits
from headrace.ctr.interfaces import LearningModel
from headrace.ctr.settings import ModelSettings
from headrace.errors import ConfigError, HeadraceError
from headrace.stream.block import Block
from headrace.stream.features import Features
from headrace.stream.reader import BackgroundReader, Reader, ReadSettings
from headrace.stream.schema import Schema, parse_schema
from headrace.terminal import Line
from headrace.training.configuration import read_toml, settings_of
from headrace.training.releasing import keras_release
from headrace.training.releasing.destination import check_destination
from headrace.training.releasing.publishing import DEFAULT_KEEP, Publication, Publisher, Training
from headrace.training.reporting.plot import Plot
from headrace.training.reporting.report import JsonReport, Observer, TerminalReport, Warnings
from headrace.training.running.checkpoint import Checkpoint, load_checkpoint
from headrace.training.running.delayed import DEFAULT_PENDING_BYTES, Pending
from headrace.training.running.interruptions import Interrupted, Interruptions
from headrace.training.running.learner import Learnable, Learner, Position
from headrace.training.running.schedule import NEVER, Every
from headrace.training.running.trainer import EXIT_CODES, Outcome, Plan, Release, Trainer, for_people
from headrace.training.scoring.windows import Windows
from headrace.training.searching.search import Search, configurations, read_search, report
from headrace.versions.held import server_settings
from headrace.versions.layout import version_directories

DEFAULT_WINDOW_ROWS = 100_000
DEFAULT_LINGER_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What is asked of a run.

    Attributes:
        input: The file with the stream; ``-`` for standard input.
        model: The model's settings that differ from the defaults, as in TOML.
        keras: ``FILE.py:FUNCTION`` that builds a Keras model to train instead; None for a click model.
        schema: A file that says what the columns are; None if the stream does.
        publish: The directory of the model's versions; None to publish nothing.
        publish_every: How often.
        keep: How many versions stay; 0 for all.
        server_configs: The settings of servers, whose labelled and pinned versions stay, too.
        quantize: In how many bits tables are published; None for 32.
        patch: Whether versions may be patches.
        replace: Whether they may follow those of another model.
        checkpoint: The directory of checkpoints; None for none.
        checkpoint_every: How often.
        resume: Whether to go on from the newest checkpoint.
        continued: Whether the input goes on where that was saved.
        window_rows: How many rows are scored together.
        slices: The columns by which metrics are split.
        label_delay_seconds: How long after its row a label is known; 0 for at once.
        pending_bytes: How much memory rows that wait for their labels may take.
        most_rows: After how many rows of the stream to stop; None for all.
        linger_seconds: How long a slow stream's rows wait to be learnt with others; None for ever.
        plot: The image to draw; None for none.
        metrics_host: Where Prometheus' metrics are answered.
        metrics_port: On which port; 0 for any, None for none.
    """

    input: str = "-"
    model: Mapping[str, object] = field(default_factory=dict)
    keras: str | None = None
    schema: Path | None = None
    publish: Path | None = None
    publish_every: Every = NEVER
    keep: int = DEFAULT_KEEP
    server_configs: tuple[Path, ...] = ()
    quantize: Bits | None = None
    patch: bool = False
    replace: bool = False
    checkpoint: Path | None = None
    checkpoint_every: Every = NEVER
    resume: bool = False
    continued: bool = False
    window_rows: int = DEFAULT_WINDOW_ROWS
    slices: tuple[str, ...] = ()
    label_delay_seconds: float = 0.0
    pending_bytes: int = DEFAULT_PENDING_BYTES
    most_rows: int | None = None
    linger_seconds: float | None = DEFAULT_LINGER_SECONDS
    plot: Path | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None


def train(options: TrainOptions, output: TextIO, errors: TextIO) -> int:
    """Learn from a stream.

    Args:
        options: What is asked.
        output: Where windows and the summary go.
        errors: Where people are told how it goes.

    Returns:
        The exit code.

    Raises:
        HeadraceError: The run could not begin.
    """
    settings = settings_of(options.model, "model")
    checkpoint = _checkpoint(options, errors)
    with ExitStack() as stack:
        telemetry = _telemetry(options, stack, errors)  # First: a stream's first row may take its time.
        reader = stack.enter_context(_reader(options, settings, _skipped(options, checkpoint)))
        learner, release = _learner(options, settings, reader.features)
        plan = Plan(
            release=release,
            publish_every=options.publish_every,
            checkpoint=options.checkpoint,
            checkpoint_every=options.checkpoint_every,
            most_rows=options.most_rows,
            identity=_identity(options, settings, reader.features.schema),
        )
        lines, terminal = JsonReport(output), TerminalReport(errors)
        plot = Plot(options.plot, f"headrace train · {settings.kind}") if options.plot else None
        observers: list[Observer] = [terminal] if errors.isatty() else []
        observers += [] if errors.isatty() and output.isatty() else [lines]
        observers += [Warnings(errors), *([plot] if plot else []), *telemetry]
        stack.enter_context(_told_of_compiling(errors))
        trainer = Trainer(learner, plan, observers)
        if checkpoint is not None:
            trainer.resume(checkpoint, continued=options.continued)
        outcome = trainer.run(_Continued(reader, learner.position.rows if options.continued else 0))
        terminal.clear()
        outcome = _drawn(plot, outcome)
        lines.write(outcome.summary)
        error = outcome.error or lines.problem
        if error is not None:
            with contextlib.suppress(OSError):  # the exit code says it, too
                errors.write(f"headrace: {error}\n")
    return outcome.exit_code or int(error is not None)


def search(options: TrainOptions, file: Path, output: TextIO, errors: TextIO) -> int:
    """Try several configurations in one pass over a stream.

    Args:
        options: What is asked; of it the stream's part, the model's settings as the base, and bits.
        file: What to try, as TOML.
        output: Where the table and the best one go, as TOML.
        errors: Where people are told how it goes.

    Returns:
        The exit code: 0 if there is a best one.
    """
    wanted = read_search(read_toml(file, "search"), f"search: {file.name}")
    tried = configurations(wanted, options.model)
    largest = max((one.settings for one in tried), key=lambda one: one.batch_rows)
    with _reader(options, largest, 0) as reader, Interruptions() as interruptions:
        _check_label(reader.features.schema)
        going = Search(tried, reader.features, wanted.gates, options.quantize)
        terminal, stopped, error = Line(errors), "end", None
        try:
            _take_all(going, reader, options.most_rows, interruptions, terminal)
        except Interrupted:
            stopped = "terminate" if interruptions.terminated else "interrupt"
        except Exception as raised:  # noqa: BLE001  # The run's end, whatever is wrong: what was found out is told.
            stopped, error = "error", _of_one(going.learning, raised)
        terminal.clear()
    unfit = _tell_results(going, output)
    error = error or unfit
    if error is not None:
        errors.write(f"headrace: {error}\n")
    return EXIT_CODES[stopped] or int(error is not None)


def _take_all(
    going: Search, blocks: Reader, most: int | None, interruptions: Interruptions, terminal: Line
) -> None:
    iterator = iter(blocks)
    while most is None or going.rows < most:
        block = interruptions.wait_for(lambda: next(iterator, None))
        if block is None:
            return
        going.take(block if most is None else block.part(0, min(len(block), most - going.rows)))
        if terminal.due:
            terminal.show(f"{going.rows:,} rows")


def _tell_results(going: Search, output: TextIO) -> str | None:
    """Write what became of the configurations; what is wrong, if there is something."""
    try:
        results = going.results()
        output.write(report(results, going.rows))
        output.flush()
    except BrokenPipeError:  # for the command line, where it is no error
        raise
    except OSError as error:
        return f"standard output cannot be written: {error.strerror or error}"
    except Exception as error:  # noqa: BLE001  # As above.
        return _of_one(going.learning, error)
    if results[0].out:
        return "search: no configuration passes the gates; widen them, or try smaller models"
    return None


def _of_one(configuration: str | None, error: Exception) -> str:
    """An error for people; that of a configuration with its name."""
    said = for_people(error)
    return said if configuration is None else f"search: {configuration}: {said}"


@contextmanager
def _told_of_compiling(errors: TextIO) -> Iterator[None]:
    """Tell who waits at a terminal why the first run of a kind of model does not begin at once."""
    if not errors.isatty():
        yield
        return
    listener = _Compiling(errors)
    with event.install_listener("numba:compile", listener):
        yield


class _Compiling(event.Listener):
    def __init__(self, errors: TextIO) -> None:
        self._errors = errors
        self._said = False

    def on_start(self, happened: object) -> None:
        if not self._said:
            self._said = True
            self._errors.write("headrace: compiling kernels, up to half a minute; later runs find them\n")
            self._errors.flush()

    def on_end(self, happened: object) -> None:
        """Nothing: rows are counted from here on."""


# ---- The parts -------------------------------------------------------------------------------------


def _checkpoint(options: TrainOptions, errors: TextIO) -> Checkpoint | None:
    if options.checkpoint is None:
        if options.resume:
            raise ConfigError("resume: there is nothing to go on from; say where with --checkpoint DIR")
        return None
    if not options.resume:
        if options.checkpoint.is_dir() and version_directories(options.checkpoint):
            raise ConfigError(
                f"checkpoint: {options.checkpoint} holds checkpoints of an earlier run; go on from them with "
                "--resume, or take another directory"
            )
        return None
    found = load_checkpoint(options.checkpoint)
    if found is None:
        errors.write(f"headrace: {options.checkpoint} holds no checkpoint; starting anew\n")
    return found


def _skipped(options: TrainOptions, checkpoint: Checkpoint | None) -> int:
    if checkpoint is None or options.continued:
        return 0
    return msgspec.convert(checkpoint.meta.get("position"), Position).rows


@contextmanager
def _reader(options: TrainOptions, settings: ModelSettings, skip_rows: int) -> Iterator[Reader]:
    schema = None
    if options.schema is not None:
        try:
            schema = parse_schema(options.schema.read_bytes(), str(options.schema))
        except OSError as error:
            raise ConfigError(f"schema: {options.schema} cannot be read: {error.strerror}") from error
    asked = ReadSettings(
        batch_rows=settings.batch_rows,
        skip_rows=skip_rows,
        linger_seconds=options.linger_seconds,
        slices=options.slices,
        schema=schema,
    )
    with _opened(options.input) as file, BackgroundReader(file, asked) as reader:
        yield reader


@contextmanager
def _opened(name: str) -> Iterator[BufferedReader]:
    if name == "-":
        if sys.stdin.isatty():
            raise ConfigError(
                "input: standard input is a terminal; pipe a stream into it, such as "
                "`headrace stream generate --rows 100000 | headrace train`, or name a file"
            )
        yield cast("BufferedReader", sys.stdin.buffer)
        return
    try:
        file = open(name, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigError(f"input: {name} cannot be opened: {error.strerror}") from error
    with file:
        yield file


def _learner(
    options: TrainOptions, settings: ModelSettings, features: Features
) -> tuple[Learner, Release | None]:
    _check_label(features.schema)
    model: Learnable
    publisher = _publisher(options, features.schema)
    if options.keras is None:
        model = _created(settings, features)
        release = None if publisher is None else _release(model, publisher)
    else:
        model, release = keras_release.build(options.keras, features, settings.seed, publisher)
    delay = options.label_delay_seconds
    pending = Pending(delay, options.pending_bytes) if delay else None
    return Learner(model, Windows(options.window_rows, options.slices), pending), release


def _created(settings: ModelSettings, features: Features) -> LearningModel:
    try:
        return factory.create(settings, features)
    except MemoryError as error:
        raise ConfigError(
            f"model: there is not enough memory for tables of {features.rows} rows ({error}); give fields "
            "fewer buckets, or the model fewer factors"
        ) from error


def _check_label(schema: Schema) -> None:
    if schema.one("label") is None:
        raise ConfigError("schema: no field is the label; there is nothing to learn from")


def _publisher(options: TrainOptions, schema: Schema) -> Publisher | None:
    if options.publish is None:
        return None
    is_keras = options.keras is not None
    check_destination(options.publish, schema, is_keras=is_keras, is_replaced=options.replace)
    for file in options.server_configs:
        server_settings(file, options.publish)  # what is wrong with it is told before anything is learnt
    return Publisher(
        options.publish,
        keep=options.keep,
        quantize=options.quantize,
        patch=options.patch,
        server_configs=options.server_configs,
    )


def _release(model: LearningModel, publisher: Publisher) -> Release:
    def release(training: Training) -> Callable[[], Publication]:
        weights = model.strip()
        return lambda: publisher.publish(model.settings, model.features, weights, training)

    return release


def _identity(options: TrainOptions, settings: ModelSettings, schema: Schema) -> dict[str, object]:
    model: dict[str, object] = msgspec.to_builtins(settings)
    del model["threads"]
    return {
        "model": model if options.keras is None else options.keras,
        "schema": msgspec.to_builtins(schema),
        "window": options.window_rows,
        "label delay": options.label_delay_seconds,
    }


def _telemetry(options: TrainOptions, stack: ExitStack, errors: TextIO) -> list[Observer]:
    if options.metrics_port is None:
        return []
    from headrace.training.reporting.telemetry import Telemetry  # noqa: PLC0415 - only when asked for

    telemetry = Telemetry(publishes=options.publish is not None)
    port, close = telemetry.listen(options.metrics_host, options.metrics_port)
    stack.callback(close)
    errors.write(f"headrace: metrics at http://{options.metrics_host}:{port}/metrics\n")
    errors.flush()
    return [telemetry]


def _drawn(plot: Plot | None, outcome: Outcome) -> Outcome:
    if plot is not None and plot.points:
        try:
            plot.draw()
        except HeadraceError as error:
            return outcome._replace(error=outcome.error or error.message, exit_code=outcome.exit_code or 1)
    return outcome


class _Continued:
    """A reader's blocks, numbered on from the rows before them."""

    def __init__(self, reader: Reader, rows_before: int) -> None:
        self._reader = reader
        self._rows_before = rows_before

    @property
    def idle_seconds(self) -> float:
        return self._reader.idle_seconds

    @property
    def stream_bytes(self) -> int:
        return self._reader.stream_bytes

    def __iter__(self) -> Iterator[Block]:
        for block in self._reader:
            yield (
                replace(block, first_row=block.first_row + self._rows_before) if self._rows_before else block
            )
