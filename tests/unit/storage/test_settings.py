"""The [store] table: what it may say, and what its errors say."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.archive.model.archive_toml import archive_config
from headrace.base.errors import ConfigError
from headrace.storage.settings import CassandraStore, LmdbStore, RedisStore, host_and_port


def settings_of(**store: object) -> object:
    table = {"store": store, "spaces": {"titles": {"dimension": 4}}}
    return archive_config(table, "archive.toml", Path("/etc/headrace")).store


def test_a_store_is_chosen_by_its_kind() -> None:
    assert settings_of(kind="lmdb") == LmdbStore(path=Path("/etc/headrace/archive"))
    assert settings_of(kind="redis", address="r:1") == RedisStore(address="r:1")
    assert settings_of(kind="cassandra", contact_points=["a:1", "b:2"]) == CassandraStore(
        contact_points=("a:1", "b:2")
    )


def test_paths_start_where_the_file_lies() -> None:
    settings = settings_of(kind="redis", tls=True, ca_file="ca.pem", password_file="/run/secret")
    assert isinstance(settings, RedisStore)
    assert settings.ca_file == Path("/etc/headrace/ca.pem")
    assert settings.password_file == Path("/run/secret")


@pytest.mark.parametrize(
    ("store", "key"),
    [
        ({"kind": "redis", "address": "redis"}, "store.address"),
        ({"kind": "redis", "address": "redis:0"}, "store.address"),
        ({"kind": "redis", "address": "re dis:1"}, "store.address"),
        ({"kind": "redis", "prefix": "a*"}, "store.prefix"),
        ({"kind": "redis", "database": -1}, "store.database"),
        ({"kind": "redis", "user": "a"}, "store.password_file"),
        ({"kind": "redis", "password_file": "a", "password_variable": "A"}, "store.password_file"),
        ({"kind": "redis", "ca_file": "a"}, "store.tls"),
        ({"kind": "redis", "password": "secret"}, "password"),
        ({"kind": "redis", "ca_file": 3}, "ca_file"),
        ({"kind": "cassandra", "contact_points": []}, "store.contact_points"),
        ({"kind": "cassandra", "contact_points": ["a"]}, "store.contact_points"),
        ({"kind": "cassandra", "keyspace": "A"}, "store.keyspace"),
        ({"kind": "cassandra", "replication": {"a'b": 1}}, "store.replication"),
        ({"kind": "cassandra", "replication": {"a": 0}}, "store.replication"),
        ({"kind": "cassandra", "read_consistency": "MOST"}, "read_consistency"),
        ({"kind": "cassandra", "keys_at_once": 0}, "store.keys_at_once"),
        ({"kind": "lmdb", "path": 3}, "path"),
        ({"kind": "lmdb", "timeout_seconds": 0}, "store.timeout_seconds"),
        ({"kind": "memory", "largest_bytes": 1}, "store.largest_bytes"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(store: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        settings_of(**store)


@pytest.mark.parametrize(
    ("address", "parts"), [("a.example:9042", ("a.example", 9042)), ("[::1]:6379", ("::1", 6379))]
)
def test_an_address_has_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts
