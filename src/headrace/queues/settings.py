"""Which queue, and where: the ``[queue]`` table of ``archive.toml``."""

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
# What brokers allow unless they are told otherwise (group.min.session.timeout.ms and its maximum).
_KAFKA_VISIBILITY_SECONDS = (6.0, 1800.0)
_LARGEST_FILE_BYTES = 2**46


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every kind of queue has.

    Attributes:
        timeout_seconds: How long one call may take.
        visibility_seconds: How long a receiver may be silent before others get what it has received.
        max_messages: How many messages may wait; more are refused.
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
    """In the memory of one process; gone with it."""


class LmdbQueue(QueueSettings, frozen=True, tag="lmdb"):
    """In a file of this machine, which several processes share.

    Attributes:
        path: The directory; a relative one starts from where ``archive.toml`` lies.
        largest_bytes: How large the file may become; what is not used takes no disk.
        sync: Whether what is accepted survives a loss of power, and not only the end of a process.
    """

    path: Path = Path("queue")
    largest_bytes: int = 2**36
    sync: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        QueueSettings.__post_init__(self)
        whole("queue.largest_bytes", self.largest_bytes, least=2**20, most=_LARGEST_FILE_BYTES)


class KafkaQueue(QueueSettings, frozen=True, tag="kafka"):
    """In a topic of Apache Kafka.

    Attributes:
        servers: Where brokers are, ``host:port``; any of them tells of all others.
        topic: The topic; for this queue only.
        group: The consumer group of all who receive.
        create: Whether the topic is made if it is not there.
        partitions: How many partitions it is made with: the most receivers that share the work.
        replication: On how many brokers each is. With 3 or more, all but one of them must have a message.
        tls: Whether connections are encrypted, and the brokers' certificates checked.
        ca_file: The certificates that are trusted; those of the system if it is not given.
        certificate_file: A certificate to show, with its key in ``key_file``.
        key_file: See there.
        user: Who to log in as; "" for nobody.
        password_file: A file that holds nothing but the password.
        mechanism: How to log in.
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
            expected = f"{least:.0f} to {most:.0f} seconds, as Kafka's brokers want"
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
            raise wrong("queue.password_file", "a file where there is a user, and none without", self.user)
        if (self.certificate_file is None) != (self.key_file is None):
            raise wrong("queue.key_file", "a file where there is a certificate_file", self.key_file)
        if not self.tls and (self.ca_file or self.certificate_file):
            raise wrong("queue.tls", "true where files of certificates are given", False)


def _is_address(server: object) -> bool:
    if not isinstance(server, str):
        return False
    host, _, port = server.rpartition(":")
    return bool(host) and "," not in host and port.isdecimal() and 0 < int(port) < 2**16


AnyQueue = MemoryQueue | LmdbQueue | KafkaQueue
