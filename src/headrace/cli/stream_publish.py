"""``headrace stream publish``: write rows into a Kafka topic; and the options of all verbs with topics."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

from headrace.base.errors import ConfigError, needs_extra
from headrace.cli import common, number_types
from headrace.stream.schema import parse_schema

if TYPE_CHECKING:
    from headrace.stream.byte_sources import Readable

_EXAMPLES = """examples:
  headrace stream publish clicks.arrows kafka://localhost:9092/clicks
  headrace stream generate --rows 100000 --pace 1000 | headrace stream publish - kafka://localhost:9092/clicks
  headrace stream publish clicks.arrows kafka://localhost:9092/clicks --partitions 3
  headrace train kafka://localhost:9092/clicks --rows 100000

docs/stream.md explains what a message is."""

_MOST_PARTITIONS = 10_000
_MOST_ROWS = 2**20


def add_kafka_config(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the option that names the file of Kafka client settings."""
    parser.add_argument(
        "--kafka-config",
        metavar="FILE",
        type=Path,
        help="settings of Kafka's client (librdkafka), one name = value per line: encryption, user, password",
    )


def add_publish(tools: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        tools,
        common.Verb(
            name="publish",
            help="write a stream's rows to a Kafka topic",
            description="Write a stream's rows to a Kafka topic, for headrace train kafka://…: each "
            "message is a small stream of its own. Messages go to all partitions in turn, and the brokers "
            "have acknowledged each before the command ends.",
            examples=_EXAMPLES,
            failure="the stream is cut or corrupt, or a message was not acknowledged",
            run=run_publish,
        ),
    )
    add = parser.add_argument
    add("input", metavar="FILE", type=Path, help="the stream; - for standard input")
    add("topic", metavar="URL", help="the topic: kafka://HOST:PORT[,HOST:PORT]/TOPIC")
    add("--schema", type=Path, metavar="FILE", help="the schema, for a stream without one")
    add_kafka_config(parser)
    add(
        "--batch-rows",
        type=number_types.whole("batch-rows", least=1, most=_MOST_ROWS),
        metavar="N",
        default=1000,
        help="maximum rows of a message (default 1000)",
    )
    add(
        "--partitions",
        type=number_types.whole("partitions", least=1, most=_MOST_PARTITIONS),
        metavar="N",
        help="create the topic with N partitions, if it does not exist",
    )


def run_publish(options: argparse.Namespace) -> int:
    """Write rows into a topic."""
    try:
        from headrace.stream.kafka.topic_writer import Publisher, batches_of  # noqa: PLC0415 - needs the extra
        from headrace.stream.stream_io import ProgressLine  # noqa: PLC0415 - needs the extra
    except ImportError as error:
        raise needs_extra("headrace stream", "train,kafka", error) from error
    from headrace.stream.kafka.topic_address import parse_topic, read_settings  # noqa: PLC0415 - as above

    schema = None
    if options.schema is not None:
        try:
            schema = parse_schema(options.schema.read_bytes(), str(options.schema))
        except OSError as error:
            raise ConfigError(f"--schema: {options.schema}: {error.strerror}") from error
    topic = parse_topic(options.topic, "URL")
    settings = read_settings(options.kafka_config)
    progress = ProgressLine(sys.stderr)
    with ExitStack() as stack:
        file = _opened(options.input, stack)
        publisher = Publisher(topic, settings, options.partitions)
        stack.callback(progress.close)
        done = publisher.publish(batches_of(file, schema), options.batch_rows, progress)
    found = {"topic": topic.name, **done._asdict()}
    if options.json:
        common.print_json(found)
    else:
        print(f"{done.rows} rows in {done.messages} messages, {done.size_bytes} bytes: {topic}")
    return common.DONE


def _opened(path: Path, stack: ExitStack) -> Readable:
    if str(path) != "-":
        try:
            return cast("Readable", stack.enter_context(path.open("rb", buffering=0)))
        except OSError as error:
            raise ConfigError(f"FILE: {path}: {error.strerror}") from error
    if sys.stdin.isatty():
        raise ConfigError(
            "FILE: expected a stream, but standard input is a terminal; name a file or pipe one in"
        )
    return cast("Readable", sys.stdin.buffer)
