"""What is asked of ``headrace train``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.ctr.files.quantization import Bits
from headrace.stream.reader import ReadSettings
from headrace.training.releasing.publishing import DEFAULT_KEEP
from headrace.training.running.delayed import DEFAULT_PENDING_BYTES
from headrace.training.running.schedule import NEVER, Every

DEFAULT_WINDOW_ROWS = 100_000
DEFAULT_LINGER_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What is asked of a run, or of a search.

    Attributes:
        input: The file with the stream; ``-`` for standard input; ``kafka://HOST:PORT/TOPIC`` for a topic.
        model: The model's settings that differ from the defaults, as in TOML.
        keras: ``FILE.py:FUNCTION`` that builds a Keras model to train instead; None for a click model.
        kafka_config: Settings of Kafka's client, such as passwords.
        skip_messages: Messages of the topic to pass over, as partition and offset.
        schema: A file that says what the columns are; None if the stream does.
        publish: The directory of the model's versions; None to publish nothing.
        publish_every: How often.
        keep: How many versions stay; 0 for all.
        server_configs: The settings of servers, whose labelled and pinned versions stay, too.
        signing_key: The private key that versions are signed with; None to sign none.
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
        json: Whether standard output gets one object only, without the windows; a search's as JSON.
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
    window_rows: int = DEFAULT_WINDOW_ROWS
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
        """How the stream is read.

        Args:
            batch_rows: Rows of a block.
            skip_rows: How many rows to pass over.
        """
        return ReadSettings(
            batch_rows=batch_rows,
            skip_rows=skip_rows,
            linger_seconds=self.linger_seconds,
            slices=self.slices,
        )
