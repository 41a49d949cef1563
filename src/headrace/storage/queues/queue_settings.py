"""Settings of the queue: the ``[queue]`` table of ``archive.toml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from headrace.config.checks import DAY, MINUTE, seconds, whole, wrong

_MOST_MESSAGES = 10**12
_MOST_PARTITIONS = 10_000
_MOST_REPLICAS = 100
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
# Limits of brokers with default settings (group.min.session.timeout.ms and group.max.session.timeout.ms).
_KAFKA_VISIBILITY_SECONDS = (6.0, 1800.0)
_LARGEST_FILE_BYTES = 2**46


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Settings common to all kinds of queue.

    Attributes:
        timeout_seconds: Timeout of one call in seconds.
        visibility_seconds: Visibility timeout: the longest silence of a receiver before others get its
            messages.
        max_messages: Maximum number of unacknowledged messages; more are refused.
    """

    timeout_seconds: float = 5.0
    visibility_seconds: float = 30.0
    max_messages: int = 10_000_000

    def __post_init__(self) -> None:
        """Check the settings."""
        seconds("queue.timeout_seconds", self.timeout_seconds, most=MINUTE, above_zero=True)
        seconds("queue.visibility_seconds", self.visibility_seconds, most=DAY, above_zero=True)
        whole("queue.max_messages", self.max_messages, least=1, most=_MOST_MESSAGES)


class MemoryQueue(QueueSettings, frozen=True, tag="memory"):
    """A queue in the memory of one process, lost with it."""


class LmdbQueue(QueueSettings, frozen=True, tag="lmdb"):
    """A queue in a file of this machine, shared by several processes.

    Attributes:
        path: Directory of the file; a relative path starts from the directory of ``archive.toml``.
        largest_bytes: Capacity in bytes. The file may be an eighth larger; unused space takes no disk.
        sync: Whether accepted messages survive a power loss, and not only the end of a process.
    """

    path: Path = Path("queue")
    largest_bytes: int = 2**36
    sync: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        QueueSettings.__post_init__(self)
        whole("queue.largest_bytes", self.largest_bytes, least=2**20, most=_LARGEST_FILE_BYTES)


class KafkaQueue(QueueSettings, frozen=True, tag="kafka"):
    """A queue in an Apache Kafka topic.

    Attributes:
        servers: Addresses of some brokers as ``host:port``; the others are discovered.
        topic: Name of the topic, used by this queue only.
        group: Consumer group of all receivers.
        create: Whether to create the topic if it does not exist.
        partitions: Number of partitions of a topic that is created, which limits the number of active
            receivers.
        replication: Replication factor of a topic that is created. With 3 or more, a message is accepted
            only if at least all replicas but one have it.
        tls: Whether to encrypt connections and verify the brokers' certificates.
        ca_file: File of trusted certificates; None for those of the system.
        certificate_file: File of the client certificate.
        key_file: File of the certificate's key.
        user: User name to log in with; "" for none.
        password_file: File with nothing but the password.
        mechanism: SASL mechanism to log in with.
    """

    servers: tuple[str, ...] = ("localhost:9092",)
    topic: str = "headrace-archive"
    group: str = "headrace-archive-fillers"
    create: bool = True
    partitions: int = 12
    replication: int = 1
    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    user: str = ""
    password_file: Path | None = None
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"

    def __post_init__(self) -> None:
        """Check the settings."""
        QueueSettings.__post_init__(self)
        least, most = _KAFKA_VISIBILITY_SECONDS
        if not least <= self.visibility_seconds <= most:
            expected = f"{least:.0f} to {most:.0f} seconds, as Kafka's brokers require"
            raise wrong("queue.visibility_seconds", expected, self.visibility_seconds)
        if not self.servers or not all(_is_address(server) for server in self.servers):
            raise wrong("queue.servers", 'addresses as in ["kafka-1:9092"]', list(self.servers))
        if not _TOPIC.fullmatch(self.topic):
            raise wrong("queue.topic", "1 to 249 letters, digits, '.', '_' and '-'", self.topic)
        if not _TOPIC.fullmatch(self.group):
            raise wrong("queue.group", "1 to 249 letters, digits, '.', '_' and '-'", self.group)
        whole("queue.partitions", self.partitions, least=1, most=_MOST_PARTITIONS)
        whole("queue.replication", self.replication, least=1, most=_MOST_REPLICAS)
        if bool(self.user) != (self.password_file is not None):
            raise wrong(
                "queue.password_file", "a file if user is set, and none otherwise", self.password_file
            )
        if (self.certificate_file is None) != (self.key_file is None):
            raise wrong(
                "queue.key_file", "a file if certificate_file is set, and none otherwise", self.key_file
            )
        if not self.tls and (self.ca_file or self.certificate_file):
            raise wrong("queue.tls", "true, as certificate files are set", False)


def _is_address(server: object) -> bool:
    if not isinstance(server, str):
        return False
    host, _, port = server.rpartition(":")
    return bool(host) and "," not in host and port.isdecimal() and 0 < int(port) < 2**16


AnyQueue = MemoryQueue | LmdbQueue | KafkaQueue
