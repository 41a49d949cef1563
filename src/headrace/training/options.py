"""Options of ``headrace train``, and model settings as TOML, whose single settings options replace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import tomli_w

from headrace.base.errors import ConfigError
from headrace.config.toml_reader import convert
from headrace.ctr.files.quantization import Bits
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.block_reader import ReadSettings
from headrace.training.releasing.publishing import DEFAULT_KEEP
from headrace.training.running.learner import DEFAULT_PENDING_BYTES
from headrace.training.running.loop import NEVER, Every

_DEFAULT_WINDOW_ROWS = 100_000
DEFAULT_LINGER_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a run or a search.

    Attributes:
        input: File with the stream; ``-`` for standard input; ``kafka://HOST:PORT/TOPIC`` for a topic.
        model: Model settings that differ from the defaults, as in TOML.
        keras: ``FILE.py:FUNCTION`` that builds a Keras model to train instead; None for a click model.
        kafka_config: File with settings of Kafka's client, such as passwords; None for none.
        skip_messages: Messages of the topic to skip, as partition and offset.
        schema: File that describes the columns; None if the stream does.
        publish: Directory of the model's versions; None to publish nothing.
        publish_every: How often to publish.
        keep: Number of versions to keep; 0 for all.
        server_configs: Configuration files of servers whose labelled and pinned versions are kept, too.
        signing_key: Private key that signs versions; None to sign none.
        quantize: Bits per weight of published tables; None for 32.
        patch: Whether versions may be patches.
        replace: Whether versions may follow those of another model.
        checkpoint: Directory of checkpoints; None for none.
        checkpoint_every: How often to save a checkpoint.
        resume: Whether to resume from the newest checkpoint.
        continued: Whether the input starts with the rows after the checkpoint.
        window_rows: Number of rows in a window.
        slices: Columns by which metrics are split.
        label_delay_seconds: Time from a row to its label, in seconds; 0 if labels are known at once.
        pending_bytes: Memory limit of rows that wait for their labels.
        most_rows: Number of rows of the stream after which to stop; None for all.
        linger_seconds: Longest time that rows of a slow stream wait for a full batch; None for no limit.
        plot: Image to draw; None for none.
        metrics_host: Address of the Prometheus endpoint.
        metrics_port: Port of the Prometheus endpoint; 0 for any free port, None for no endpoint.
        json: Whether to write a single JSON object to standard output: the summary without the windows, or
            a search's results.
    """

    input: str = "-"
    model: Mapping[str, object] = field(default_factory=dict)
    keras: str | None = None
    kafka_config: Path | None = None
    skip_messages: tuple[tuple[int, int], ...] = ()
    schema: Path | None = None
    publish: Path | None = None
    publish_every: Every = NEVER
    keep: int = DEFAULT_KEEP
    server_configs: tuple[Path, ...] = ()
    signing_key: Path | None = None
    quantize: Bits | None = None
    patch: bool = False
    replace: bool = False
    checkpoint: Path | None = None
    checkpoint_every: Every = NEVER
    resume: bool = False
    continued: bool = False
    window_rows: int = _DEFAULT_WINDOW_ROWS
    slices: tuple[str, ...] = ()
    label_delay_seconds: float = 0.0
    pending_bytes: int = DEFAULT_PENDING_BYTES
    most_rows: int | None = None
    linger_seconds: float | None = DEFAULT_LINGER_SECONDS
    plot: Path | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    json: bool = False

    def reading(self, batch_rows: int, skip_rows: int = 0) -> ReadSettings:
        """Return the settings for reading the stream.

        Args:
            batch_rows: Rows per block.
            skip_rows: Number of rows to skip.
        """
        return ReadSettings(
            batch_rows=batch_rows,
            skip_rows=skip_rows,
            linger_seconds=self.linger_seconds,
            slices=self.slices,
        )


def settings_of(values: Mapping[str, object], where: str) -> ModelSettings:
    """Convert settings read from TOML.

    Args:
        values: Settings that differ from the defaults.
        where: Name of their source in errors.

    Raises:
        ConfigError: A setting is unknown or invalid.
    """
    return convert(values, ModelSettings, where)


def check_file(values: Mapping[str, object], changes: Mapping[str, object], where: str) -> None:
    """Raise an error that names the file if its settings are invalid with and without the options.

    Args:
        values: Settings of the file.
        changes: Changes by command-line options, in the form that ``changed`` takes.
        where: Name of the file in errors.

    Raises:
        ConfigError: The settings are invalid both with the changes and without them.
    """
    try:
        settings_of(changed(values, changes), where)
    except ConfigError:
        settings_of(values, where)  # raises, unless only an option is invalid


def changed(values: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Return settings with some of them replaced.

    Args:
        values: The settings, as in TOML.
        changes: New values by name; ``embeddings.learning_rate`` names one within a group. A mapping changes
            only the values of its group that it names.
    """
    made = dict(values)
    for name, value in changes.items():
        group, _, inner = name.partition(".")
        if inner or isinstance(value, Mapping):
            within = made.get(group)
            more = {inner: value} if inner else dict(value) if isinstance(value, Mapping) else {}
            made[group] = changed(within if isinstance(within, Mapping) else {}, more)
        else:
            made[name] = value
    return made


def to_toml(settings: ModelSettings) -> str:
    """Return all settings as TOML, in the form that ``--config`` takes."""
    return tomli_w.dumps(msgspec.to_builtins(settings))
