"""Where a topic is, and what a client of Kafka is told besides."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace.disk import read_text
from headrace.errors import ConfigError, shown

SCHEME = "kafka://"

_LOGGER = logging.getLogger(__name__)
_LONGEST_SETTINGS_BYTES = 2**16
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OURS = frozenset(
    ("bootstrap.servers", "metadata.broker.list", "group.id", "auto.offset.reset", "enable.auto.commit")
)


class Topic(NamedTuple):
    """A topic of a cluster.

    Attributes:
        servers: The brokers to begin with, ``HOST:PORT,HOST:PORT``.
        name: The topic.
    """

    servers: str
    name: str

    def __str__(self) -> str:
        """For people."""
        return f"topic {self.name} at {self.servers}"


def parse_topic(text: str, field: str) -> Topic:
    """Read ``kafka://HOST:PORT[,HOST:PORT]/TOPIC``.

    Args:
        text: The address.
        field: Which argument it is, for errors.

    Raises:
        ConfigError: It is no such address, or has a password in it.
    """
    servers, _, name = text.removeprefix(SCHEME).partition("/")
    if "@" in text:  # The text itself is not repeated: logs and screens are read by many.
        raise ConfigError(
            f"{field}: user names and passwords do not belong into an address, which anybody can see in the "
            "list of processes; write them into a file for --kafka-config"
        )
    wrong = [server for server in servers.split(",") if not _SERVER.fullmatch(server)]
    if not text.startswith(SCHEME) or wrong or not _TOPIC.fullmatch(name):
        raise ConfigError(f"{field}: expected kafka://HOST:PORT[,HOST:PORT]/TOPIC, got {shown(text)}")
    return Topic(servers, name)


def read_settings(file: Path | None) -> dict[str, Any]:
    """Read settings of Kafka's client, ``name = value`` a line, such as ``security.protocol = SASL_SSL``.

    Args:
        file: The file; None for no settings.

    Raises:
        ConfigError: It cannot be read, or a line is wrong; values, which may be passwords, are not repeated.
    """
    if file is None:
        return {}
    try:
        lines = read_text(file, _LONGEST_SETTINGS_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"kafka-config: {file} cannot be read: {error}") from error
    found: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not name or not equals:
            raise ConfigError(f"kafka-config: {file}, line {number}: expected name = value")
        if name in _OURS:
            raise ConfigError(f"kafka-config: {file}, line {number}: {name} is set by headrace; leave it out")
        found[name] = value
    return found


def make_client(kind: str, own: Mapping[str, Any], topic: Topic, settings: Mapping[str, Any]) -> Any:
    """Make a client of confluent-kafka.

    Args:
        kind: ``Consumer`` or ``Producer``.
        own: What headrace sets; what is read from a file wins where both may say it.
        topic: Where its brokers are.
        settings: What is read from a file.

    Raises:
        ConfigError: confluent-kafka is not installed, or does not take the settings.
    """
    try:
        import confluent_kafka  # noqa: PLC0415 - only who uses Kafka needs it
    except ImportError as error:
        raise ConfigError(
            "kafka:// needs confluent-kafka, which is not installed: pip install 'headrace[kafka]'"
        ) from error
    common = {
        "client.id": "headrace",
        "reconnect.backoff.max.ms": 2000,
        "socket.timeout.ms": 10_000,
        "log_level": 0,  # what matters comes through error_cb, and is said once
        "logger": _LOGGER,
    }
    make: Callable[[dict[str, Any]], Any] = getattr(confluent_kafka, kind)
    try:
        return make({**common, **own, **settings, "bootstrap.servers": topic.servers})
    except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
        raise ConfigError(f"kafka-config: Kafka's client does not take it: {reason(error)}") from error


def reason(error: object) -> str:
    """What an error of the client's says."""
    said = error.args[0] if isinstance(error, Exception) and error.args else error
    return str(said.str()) if hasattr(said, "str") else str(said)


def partitions_of(client: Any, topic: Topic, seconds: float, failures: list[str]) -> list[int]:
    """Ask which partitions a topic has.

    Args:
        client: A consumer or producer.
        topic: Which.
        seconds: How long an answer may take.
        failures: What the client's ``error_cb`` has noted, for the reason.

    Raises:
        ConfigError: No broker answers, or there is no such topic.
    """
    import confluent_kafka  # noqa: PLC0415 - it is there: the client is made by it

    for _ in range(max(1, round(seconds))):
        try:
            found = client.list_topics(topic.name, timeout=1.0).topics[topic.name]
            break
        except confluent_kafka.KafkaException as error:
            client.poll(0)  # which tells of failures; and Ctrl-C is heard between two tries
            last = reason(error)
    else:
        why = failures[-1] if failures else last
        raise ConfigError(
            f"no broker of Kafka answers at {topic.servers} within {seconds:g} s ({why}): is it running, and "
            "are the address and --kafka-config right?"
        )
    if found.error is not None:
        raise ConfigError(
            f"{topic} cannot be used: {found.error.str()}; is the name right? (`headrace stream publish "
            "--partitions N` makes a topic)"
        )
    return sorted(found.partitions)
