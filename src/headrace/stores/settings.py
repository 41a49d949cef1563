"""Which store, and where: the ``[store]`` table of ``archive.toml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from headrace.config.checks import MINUTE, seconds, whole, wrong

Consistency = Literal[
    "ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_ONE", "LOCAL_QUORUM", "EACH_QUORUM"
]
"""How many copies Cassandra asks for."""

_LARGEST_FILE_BYTES = 2**46
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[0-9]{1,5})")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,40}")
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")
_DATACENTER = re.compile(r"[A-Za-z0-9._-]{1,100}")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every kind of store has.

    Attributes:
        timeout_seconds: How long one call may take.
    """

    timeout_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Check the settings."""
        seconds("store.timeout_seconds", self.timeout_seconds, most=MINUTE, above_zero=True)


class MemoryStore(StoreSettings, frozen=True, tag="memory"):
    """In the memory of one process; gone with it.

    Attributes:
        largest_bytes: How much it may hold: keys, values, and what Python needs for each.
    """

    largest_bytes: int = 2**30

    def __post_init__(self) -> None:
        """Check the settings."""
        StoreSettings.__post_init__(self)
        whole("store.largest_bytes", self.largest_bytes, least=2**16, most=_LARGEST_FILE_BYTES)


class LmdbStore(StoreSettings, frozen=True, tag="lmdb"):
    """In a file of this machine, which several processes share.

    Attributes:
        path: The directory; a relative one starts from where ``archive.toml`` lies.
        largest_bytes: How much it may hold; the file may be an eighth larger, and what is not used takes no
            disk.
        sync: Whether what is written survives a loss of power, and not only the end of a process.
    """

    path: Path = Path("archive")
    largest_bytes: int = 2**40
    sync: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        StoreSettings.__post_init__(self)
        whole("store.largest_bytes", self.largest_bytes, least=2**20, most=_LARGEST_FILE_BYTES)


class RemoteStore(StoreSettings, frozen=True):
    """What stores of other machines have.

    Attributes:
        tls: Whether connections are encrypted, and the servers' certificates checked.
        ca_file: The certificates that are trusted; those of the system if it is not given.
        certificate_file: A certificate to show, with its key in ``key_file`` if that is a file of its own.
        key_file: See there.
        check_hostname: Whether a server's certificate must be of the name that it was called by.
        user: Who to log in as; "" for nobody in particular.
        password_file: A file that holds nothing but the password; read anew for each connection.
        password_variable: The environment variable that holds it, instead of a file.
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
            raise wrong("store.password_file", "nothing beside password_variable", str(self.password_file))
        if self.user and not self.has_password:
            raise wrong("store.password_file", "a file, or password_variable, where there is a user", None)
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise wrong("store.tls", "true where files of certificates are given", False)

    @property
    def has_password(self) -> bool:
        """Whether it is said where a password is."""
        return bool(self.password_variable) or self.password_file is not None


class RedisStore(RemoteStore, frozen=True, tag="redis"):
    """In a Redis server.

    Attributes:
        address: Where it is, as ``redis.example:6379``.
        database: The number of the database in it.
        prefix: What the names of all keys begin with; archives that share a server have different ones.
    """

    address: str = "127.0.0.1:6379"
    database: int = 0
    prefix: str = "headrace"

    def __post_init__(self) -> None:
        """Check the settings."""
        RemoteStore.__post_init__(self)
        check_address("store.address", self.address)
        whole("store.database", self.database, most=2**16)
        if not _PREFIX.fullmatch(self.prefix):
            raise wrong("store.prefix", "1 to 40 letters, digits, - and _", self.prefix)


class CassandraStore(RemoteStore, frozen=True, tag="cassandra"):
    """In a Cassandra cluster.

    Attributes:
        contact_points: Some of its nodes, as ``cassandra.example:9042``; those that answer tell of the rest.
        datacenter: The one whose nodes are asked; "" for that of the first node that answers.
        keyspace: Where the tables are.
        create_keyspace: Whether to make it where it is not there.
        replication: How it is made then: how many copies there are in each data centre.
        replication_factor: The same for a cluster of one data centre, where ``replication`` is empty.
        read_consistency: How many copies answer a read.
        write_consistency: How many copies confirm a write.
        serial_consistency: Among which copies records are agreed on: of all data centres, or of one.
        keys_at_once: How many keys are asked for in one query.
        queries_at_once: How many queries of one call are under way.
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
            check_address("store.contact_points", address)
        if not _KEYSPACE.fullmatch(self.keyspace):
            raise wrong(
                "store.keyspace", "a small letter, then up to 47 small letters, digits and _", self.keyspace
            )
        whole("store.replication_factor", self.replication_factor, least=1, most=100)
        for datacenter, copies in self.replication.items():
            if not _DATACENTER.fullmatch(datacenter):
                raise wrong("store.replication", "names of data centres, each with a number", datacenter)
            whole(f"store.replication.{datacenter}", copies, least=1, most=100)
        whole("store.keys_at_once", self.keys_at_once, least=1, most=1000)
        whole("store.queries_at_once", self.queries_at_once, least=1, most=1000)


def check_address(key: str, address: str) -> None:
    """Refuse what is no ``host:port``.

    Raises:
        ConfigError: It is none.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) < 2**16:
        raise wrong(key, "host:port, as in cassandra.example:9042 or [::1]:9042", address)


def host_and_port(address: str) -> tuple[str, int]:
    """Take an address apart; it was checked."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


AnyStore = MemoryStore | LmdbStore | RedisStore | CassandraStore
