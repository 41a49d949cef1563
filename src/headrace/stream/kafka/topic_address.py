"""Parse the address of a topic and the settings of Kafka's client, and create clients."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace.base.errors import ConfigError, needs_extra, shown
from headrace.base.files import read_text

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
        servers: The bootstrap brokers, ``HOST:PORT,HOST:PORT``.
        name: The topic.
    """

    servers: str
    name: str

    def __str__(self) -> str:
        """Return a description for people."""
        return f"topic {self.name} at {self.servers}"


def parse_topic(text: str, field: str) -> Topic:
    """Parse ``kafka://HOST:PORT[,HOST:PORT]/TOPIC``.

    Args:
        text: The address.
        field: The name of the argument, for errors.

    Raises:
        ConfigError: It is not such an address, or contains a user name or a password.
    """
    servers, _, name = text.removeprefix(SCHEME).partition("/")
    if "@" in text:  # Do not echo the text: many people read logs and screens.
        raise ConfigError(
            f"{field}: an address must not contain a user name or password, because anybody can see it in "
            "the list of processes; put them into a file for --kafka-config"
        )
    wrong = [server for server in servers.split(",") if not _SERVER.fullmatch(server)]
    if not text.startswith(SCHEME) or wrong or not _TOPIC.fullmatch(name):
        raise ConfigError(f"{field}: expected kafka://HOST:PORT[,HOST:PORT]/TOPIC, got {shown(text)}")
    return Topic(servers, name)


def read_settings(file: Path | None) -> dict[str, Any]:
    """Read settings of Kafka's client, one per line, such as ``security.protocol = SASL_SSL``.

    Args:
        file: The file; None for no settings.

    Raises:
        ConfigError: It cannot be read, or a line is invalid; values, which may be passwords, are not shown.
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
    """Create a client of confluent-kafka.

    Args:
        kind: ``Consumer`` or ``Producer``.
        own: headrace's settings, which ``settings`` may override.
        topic: The topic, for its brokers.
        settings: The operator's settings from a file.

    Raises:
        ConfigError: confluent-kafka is not installed, or refuses the settings.
    """
    try:
        import confluent_kafka  # noqa: PLC0415 - only needed for Kafka
    except ImportError as error:
        raise needs_extra("kafka://", "kafka", error) from error
    common = {
        "client.id": "headrace",
        "reconnect.backoff.max.ms": 2000,
        "socket.timeout.ms": 10_000,
        "log_level": 0,  # error_cb reports what matters, once
        "logger": _LOGGER,
    }
    make: Callable[[dict[str, Any]], Any] = getattr(confluent_kafka, kind)
    try:
        return make({**common, **own, **settings, "bootstrap.servers": topic.servers})
    except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
        raise ConfigError(f"kafka-config: Kafka's client rejected it: {reason(error)}") from error


def reason(error: object) -> str:
    """Return the text of a client's error."""
    said = error.args[0] if isinstance(error, Exception) and error.args else error
    return str(said.str()) if hasattr(said, "str") else str(said)


def partitions_of(client: Any, topic: Topic, seconds: float, failures: list[str]) -> list[int]:
    """Return the partitions of a topic.

    Args:
        client: A consumer or producer.
        topic: The topic.
        seconds: Timeout.
        failures: Errors noted by the client's ``error_cb``, for the reason.

    Raises:
        ConfigError: No broker answers, or the topic does not exist.
    """
    import confluent_kafka  # noqa: PLC0415 - installed, as the client exists

    for _ in range(max(1, round(seconds))):
        try:
            found = client.list_topics(topic.name, timeout=1.0).topics[topic.name]
            break
        except confluent_kafka.KafkaException as error:
            client.poll(0)  # runs error_cb; Ctrl-C takes effect between two attempts
            last = reason(error)
    else:
        why = failures[-1] if failures else last
        raise ConfigError(
            f"no Kafka broker answered at {topic.servers} within {seconds:g} s ({why}): is it running, and "
            "are the address and --kafka-config right?"
        )
    if found.error is not None:
        raise ConfigError(
            f"{topic} cannot be used: {found.error.str()}; is the name right? (`headrace stream publish "
            "--partitions N` creates a topic)"
        )
    return sorted(found.partitions)
