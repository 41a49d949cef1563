"""The store in Cassandra: a node that goes and comes, another service there, passwords, certificates."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.errors import ConfigError, Unavailable
from headrace.storage.opening import open_store
from headrace.storage.settings import CassandraStore
from headrace.storage.stores.cassandra import InCassandraStore
from headrace.storage.stores.store import Item
from tests.faults.patience import ended
from tests.faults.store_outages import check_outages
from tests.services import Start
from tools.services.cassandra_server import Cassandra

SECONDS = 2.0
"""A call's time; a node that has just started takes a second for its first ones."""


def settings(address: str, **more: object) -> CassandraStore:
    options = {"timeout_seconds": SECONDS, "contact_points": (address,), **more}
    return CassandraStore(**options)  # type: ignore[arg-type]


def in_time(call: Callable[[], object]) -> None:
    """Check that a call ends by itself, and says that there is nobody."""
    assert ended(call, SECONDS), "it worked"


@pytest.mark.rest
def test_a_node_that_goes_comes_back(own_cassandra: Start[Cassandra]) -> None:
    server = own_cassandra()
    server.stop()
    store = open_store(settings(server.address))
    in_time(lambda: store.get_many("outages", [b"a"]))
    server.start()
    check_outages(store, server, SECONDS)
    server.freeze()
    in_time(lambda: store.get_many("never_asked", [b"a"]))  # a statement that is to be prepared first
    server.thaw()
    store.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """What takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_service_that_says_nothing_is_unavailable_in_time(silent: str) -> None:
    store = open_store(settings(silent))
    for _ in range(3):
        in_time(lambda: store.get_many("values", [b"a"]))
    store.close()


def test_another_service_is_unavailable_in_time(redis_server: object) -> None:
    store = open_store(settings(redis_server.address))  # type: ignore[attr-defined]
    for _ in range(3):
        in_time(lambda: store.get_many("values", [b"a"]))
    store.close()


@pytest.mark.rest
def test_passwords_certificates_and_contact_points(own_cassandra: Start[Cassandra], tmp_path: Path) -> None:
    server = own_cassandra(tls=True, password=True)
    assert server.password is not None
    assert server.ca_file is not None
    file = tmp_path / "password"
    file.write_text("wrong\n")
    secure = {"tls": True, "ca_file": Path(server.ca_file), "user": server.user, "password_file": file}
    for wrong in (secure, {**secure, "ca_file": None}, {"user": server.user, "password_file": file}):
        store = open_store(settings(server.address, **wrong))
        in_time(lambda store=store: store.read("record"))
        store.close()
    file.write_text(server.password + "\n")
    # Nobody listens at the first of them.
    points = ("127.0.0.1:1", server.address)
    store = open_store(
        settings(server.address, **{**secure, "contact_points": points, "timeout_seconds": 20.0})
    )
    store.create("values")
    store.put_many("values", [Item(b"a", b"1")])
    assert store.get_many("values", [b"a"]) == [b"1"]
    assert store.swap("record", None, b"1")
    store.close()


def test_a_keyspace_is_made_on_request_only(cassandra_server: Cassandra) -> None:
    more = {"timeout_seconds": 20.0, "keyspace": "of_the_operator"}
    store = open_store(settings(cassandra_server.address, create_keyspace=False, **more))
    with pytest.raises(Unavailable, match="create_keyspace"):
        store.create("values")
    store.close()
    replication = {"datacenter1": 1}
    made = {"replication": replication, "read_consistency": "ONE", "write_consistency": "ALL", **more}
    store = open_store(settings(cassandra_server.address, **made))
    store.create("values")
    store.put_many("values", [Item(b"a", b"1")], 100.0)
    assert store.get_many("values", [b"a"]) == [b"1"]
    store.close()
    store = open_store(settings(cassandra_server.address, create_keyspace=False, **more))
    assert store.get_many("values", [b"a"]) == [b"1"]
    store.close()


def test_without_the_table_of_records_they_are_unavailable(cassandra_server: Cassandra) -> None:
    more = {"timeout_seconds": 20.0, "keyspace": "without_records"}
    store = InCassandraStore(settings(cassandra_server.address, **more))
    assert store.swap("record", None, b"1")
    session = store._session.ready(time.monotonic() + 20)
    session.execute('DROP TABLE without_records."Records"', timeout=20)
    calls: list[Callable[[], object]] = [
        lambda: store.read("record"),
        lambda: store.swap("record", None, b"2"),
        lambda: store.swap("record", b"1", b"2"),
    ]
    for call in calls:
        with pytest.raises(Unavailable, match="the table of records is missing; restart"):
            call()
    store.close()
    store = InCassandraStore(settings(cassandra_server.address, **more))
    assert store.read("record") is None
    store.close()


def test_copies_that_do_not_exist_are_unavailable(cassandra_server: Cassandra) -> None:
    more = {"timeout_seconds": 20.0, "keyspace": "of_three_copies", "replication_factor": 3}
    store = open_store(settings(cassandra_server.address, **more))
    store.create("values")
    with pytest.raises(Unavailable):
        store.put_many("values", [Item(b"a", b"1")])
    with pytest.raises(Unavailable):
        store.get_many("values", [b"a"])
    store.close()
    store = open_store(
        settings(cassandra_server.address, read_consistency="ONE", write_consistency="ONE", **more)
    )
    store.put_many("values", [Item(b"a", b"1")])
    assert store.get_many("values", [b"a"]) == [b"1"]
    store.close()


def test_invalid_settings_are_refused_at_opening(tmp_path: Path) -> None:
    for wrong in (
        {"user": "somebody"},
        {"user": "somebody", "password_file": tmp_path / "nothing"},
        {"tls": True, "ca_file": tmp_path / "nothing"},
        {"contact_points": ()},
        {"contact_points": ("localhost",)},
        {"keyspace": "a; DROP"},
        {"replication": {"'} AND": 1}},
    ):
        with pytest.raises(ConfigError):
            open_store(settings("127.0.0.1:1", **wrong))
