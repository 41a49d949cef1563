"""Settings of stores and queues: the tables ``[store]`` and ``[queue]`` of ``archive.toml``.

The passwords and TLS files of remote stores are checked when the store is opened.
"""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import Literal

import msgspec

from headrace.base.errors import ConfigError
from headrace.base.files import read_text
from headrace.config.checks import DAY, MINUTE, seconds, whole, wrong
from headrace.net.client_tls import client_context

Consistency = Literal[
    "ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_ONE", "LOCAL_QUORUM", "EACH_QUORUM"
]
"""Cassandra's consistency levels for reads and writes."""

_LARGEST_FILE_BYTES = 2**46
_LONGEST_PASSWORD_BYTES = 64 * 1024
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[0-9]{1,5})")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,40}")
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")
_DATACENTER = re.compile(r"[A-Za-z0-9._-]{1,100}")
_MOST_MESSAGES = 10**12
_MOST_PARTITIONS = 10_000
_MOST_REPLICAS = 100
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
# Limits of brokers with default settings (group.min.session.timeout.ms and group.max.session.timeout.ms).
_KAFKA_VISIBILITY_SECONDS = (6.0, 1800.0)


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Settings common to all kinds of store.

    Attributes:
        timeout_seconds: Timeout of one call in seconds.
    """

    timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Check the settings."""
        seconds("store.timeout_seconds", self.timeout_seconds, most=MINUTE, above_zero=True)


class MemoryStore(StoreSettings, frozen=True, tag="memory"):
    """A store in the memory of one process, lost with it.

    Attributes:
        largest_bytes: Capacity in bytes, counting keys, values and Python's overhead for each.
    """

    largest_bytes: int = 2**30

    def __post_init__(self) -> None:
        """Check the settings."""
        StoreSettings.__post_init__(self)
        whole("store.largest_bytes", self.largest_bytes, least=2**16, most=_LARGEST_FILE_BYTES)


class LmdbStore(StoreSettings, frozen=True, tag="lmdb"):
    """A store in a file of this machine, shared by several processes.

    Attributes:
        path: Directory of the file; a relative path starts from the directory of ``archive.toml``.
        largest_bytes: Capacity in bytes. The file may be an eighth larger; unused space takes no disk.
        sync: Whether writes survive a power loss, and not only the end of a process.
        read_in_place: Whether lookups read the file's pages directly. This is twice as fast, and reports a
            damaged page as an error. Otherwise all reads go through LMDB, which may crash on such a page.
    """

    path: Path = Path("archive")
    largest_bytes: int = 2**40
    sync: bool = True
    read_in_place: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        StoreSettings.__post_init__(self)
        whole("store.largest_bytes", self.largest_bytes, least=2**20, most=_LARGEST_FILE_BYTES)


class RemoteStore(StoreSettings, frozen=True):
    """Settings common to remote stores.

    Attributes:
        tls: Whether to encrypt connections and verify the servers' certificates.
        ca_file: File of trusted certificates; None for those of the system.
        certificate_file: File of the client certificate.
        key_file: File of the certificate's key; None if ``certificate_file`` contains it.
        check_hostname: Whether a server's certificate must match the host name connected to.
        user: User name to log in with; "" for none.
        password_file: File with nothing but the password; read again for each connection.
        password_variable: Environment variable with the password, instead of a file.
    """

    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    check_hostname: bool = True
    user: str = ""
    password_file: Path | None = None
    password_variable: str = ""

    def __post_init__(self) -> None:
        """Check the settings."""
        StoreSettings.__post_init__(self)
        if self.password_variable and self.password_file is not None:
            raise wrong(
                "store.password_file", "none, because password_variable is set", str(self.password_file)
            )
        if self.user and not self.has_password:
            raise wrong("store.password_file", "a file, or password_variable, because user is set", None)
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise wrong("store.tls", "true, as certificate files are set", False)

    @property
    def has_password(self) -> bool:
        """Whether a password is configured."""
        return bool(self.password_variable) or self.password_file is not None


class RedisStore(RemoteStore, frozen=True, tag="redis"):
    """A store in a Redis server.

    Attributes:
        address: Address of the server, as ``redis.example:6379``.
        database: Number of the database in the server.
        prefix: Prefix of all keys; archives that share a server need different ones.
    """

    address: str = "127.0.0.1:6379"
    database: int = 0
    prefix: str = "headrace"

    def __post_init__(self) -> None:
        """Check the settings."""
        RemoteStore.__post_init__(self)
        _check_address("store.address", self.address)
        whole("store.database", self.database, most=2**16)
        if not _PREFIX.fullmatch(self.prefix):
            raise wrong("store.prefix", "1 to 40 letters, digits, - and _", self.prefix)


class CassandraStore(RemoteStore, frozen=True, tag="cassandra"):
    """A store in a Cassandra cluster.

    Attributes:
        contact_points: Addresses of some nodes, as ``cassandra.example:9042``; the others are discovered.
        datacenter: Data centre whose nodes are queried; "" for that of the first node that answers.
        keyspace: Keyspace of the tables.
        create_keyspace: Whether to create the keyspace if it does not exist.
        replication: Number of copies in each data centre, used when the keyspace is created.
        replication_factor: Number of copies if ``replication`` is empty, for clusters of one data centre.
        read_consistency: Consistency level of reads.
        write_consistency: Consistency level of writes.
        serial_consistency: SERIAL: records are agreed on across all data centres; LOCAL_SERIAL: only within
            the local one.
        keys_at_once: Maximum number of keys in one query.
        queries_at_once: Maximum number of a call's reads in flight; for writes, eight times as many.
    """

    contact_points: tuple[str, ...] = ("127.0.0.1:9042",)
    datacenter: str = ""
    keyspace: str = "headrace"
    create_keyspace: bool = True
    replication: dict[str, int] = {}
    replication_factor: int = 1
    read_consistency: Consistency = "LOCAL_QUORUM"
    write_consistency: Consistency = "LOCAL_QUORUM"
    serial_consistency: Literal["SERIAL", "LOCAL_SERIAL"] = "SERIAL"
    keys_at_once: int = 100
    queries_at_once: int = 16

    def __post_init__(self) -> None:
        """Check the settings."""
        RemoteStore.__post_init__(self)
        if not self.contact_points:
            raise wrong("store.contact_points", "at least one address", [])
        for address in self.contact_points:
            _check_address("store.contact_points", address)
        if not _KEYSPACE.fullmatch(self.keyspace):
            raise wrong(
                "store.keyspace",
                "a lowercase letter, then up to 47 lowercase letters, digits and _",
                self.keyspace,
            )
        whole("store.replication_factor", self.replication_factor, least=1, most=100)
        for datacenter, copies in self.replication.items():
            if not _DATACENTER.fullmatch(datacenter):
                raise wrong("store.replication", "names of data centres, each with a number", datacenter)
            whole(f"store.replication.{datacenter}", copies, least=1, most=100)
        whole("store.keys_at_once", self.keys_at_once, least=1, most=1000)
        whole("store.queries_at_once", self.queries_at_once, least=1, most=1000)


def _check_address(key: str, address: str) -> None:
    """Check that an address has the form ``host:port``.

    Raises:
        ConfigError: The address does not have this form, or its port is out of range.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) < 2**16:
        raise wrong(key, "host:port, as in cassandra.example:9042 or [::1]:9042", address)


def host_and_port(address: str) -> tuple[str, int]:
    """Split a checked address into host and port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


AnyStore = MemoryStore | LmdbStore | RedisStore | CassandraStore


def password(settings: RemoteStore) -> str | None:
    """Read the current password; return None if none is configured.

    Raises:
        ConfigError: The password's environment variable or file is missing or cannot be read.
    """
    if settings.password_variable:
        found = os.environ.get(settings.password_variable)
        if found is None:
            raise ConfigError(
                f"store.password_variable: there is no environment variable {settings.password_variable!r}"
            )
        return found
    if settings.password_file is None:
        return None
    try:
        return read_text(settings.password_file, _LONGEST_PASSWORD_BYTES, ordinary=False).rstrip("\r\n")
    except OSError as error:
        raise ConfigError(
            f"store.password_file: {settings.password_file} cannot be read: {error.strerror}"
        ) from error


def tls_context(settings: RemoteStore) -> ssl.SSLContext | None:
    """Return the TLS context for connections, or None if TLS is off.

    Raises:
        ConfigError: A file is missing or invalid.
    """
    if not settings.tls:
        return None
    context = client_context(
        settings.ca_file, settings.certificate_file, settings.key_file, name_of="store.{}".format
    )
    context.check_hostname = settings.check_hostname
    return context


# ---- Queues ----


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
