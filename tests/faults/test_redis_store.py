"""The store in Redis: a server that goes and comes, another service there, passwords and certificates."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis

from headrace.base.errors import ConfigError, Unavailable
from headrace.storage.opening import open_store
from headrace.storage.settings import RedisStore
from headrace.storage.stores.redis import InRedisStore
from headrace.storage.stores.store import Item
from headrace.testing.stores import eventually
from tests.faults.patience import ended
from tests.faults.store_outages import TIMEOUT_SECONDS, check_outages
from tests.services import Start
from tests.waiting import until
from tools.services.redis_server import Redis


def settings(address: str, **more: object) -> RedisStore:
    return RedisStore(**{"address": address, "timeout_seconds": 30.0, **more})  # type: ignore[arg-type]


def impatient(address: str, **more: object) -> RedisStore:
    """The settings for a server that goes away: calls end soon."""
    return settings(address, timeout_seconds=TIMEOUT_SECONDS, **more)


@pytest.mark.rest
def test_a_server_that_goes_comes_back(own_redis: Start[Redis]) -> None:
    server = own_redis()
    store = open_store(impatient(server.address))
    check_outages(store, server)
    store.close()


def test_a_server_that_is_not_there_yet(own_redis: Start[Redis]) -> None:
    server = own_redis()
    server.stop()
    store = open_store(settings(server.address))
    with pytest.raises(Unavailable, match=server.address):
        store.create("values")
    server.start()
    store.create("values")
    store.put_many("values", [Item(b"a", b"1")])
    assert store.get_many("values", [b"a"]) == [b"1"]
    store.close()


@pytest.fixture
def paused(own_redis: Start[Redis]) -> Iterator[tuple[InRedisStore, redis.Redis]]:
    """A store with a partition, and a client of its server, on which all writes wait."""
    server = own_redis()
    store = InRedisStore(settings(server.address))
    store.create("values")
    with redis.Redis.from_url(server.url) as client:
        client.client_pause(600_000, all=False)
        yield store, client
    store.close()


def drop_connections(client: redis.Redis, count: int) -> None:
    """Close the connections of so many calls in turn, each once its write waits on the server."""
    for _ in range(count):
        until(lambda: _waiting(client))
        client.client_kill(_waiting(client)[0]["addr"])


def _waiting(client: redis.Redis) -> list[dict[str, str]]:
    return [one for one in client.client_list() if "b" in one["flags"]]


@pytest.mark.parametrize(("dropped", "is_written"), [(1, True), (2, False)])
def test_a_call_whose_connection_is_dropped_is_made_once_more(
    paused: tuple[InRedisStore, redis.Redis], dropped: int, is_written: bool
) -> None:
    store, client = paused
    with ThreadPoolExecutor() as pool:
        call = pool.submit(store.put_many, "values", [Item(b"a", b"1")])
        drop_connections(client, dropped)
        until(lambda: call.done() or _waiting(client))
        assert call.done() is not is_written
        client.client_unpause()
        if is_written:
            call.result()
        else:
            with pytest.raises(Unavailable):
                call.result()
    assert store.get_many("values", [b"a"]) == [b"1" if is_written else b""]


def test_a_swap_whose_connection_is_dropped_is_not_made_again(
    paused: tuple[InRedisStore, redis.Redis],
) -> None:
    store, client = paused
    with ThreadPoolExecutor() as pool:
        call = pool.submit(store.swap, "record", None, b"1")
        drop_connections(client, 1)
        until(lambda: call.done() or _waiting(client))
        client.client_unpause()
        with pytest.raises(Unavailable):
            call.result()
    assert store.read("record") is None


def say_nothing(connection: socket.socket) -> None:
    while connection.recv(2**20):
        pass


def answer(content: bytes, *, pause_seconds: float = 0.0) -> Callable[[socket.socket], None]:
    """A service that answers with the same, byte after byte if there is a pause, on and on."""

    def serve(connection: socket.socket) -> None:
        while connection.recv(65536):
            for piece in [content] if not pause_seconds else [bytes([byte]) for byte in content]:
                connection.sendall(piece)
                time.sleep(pause_seconds)

    return serve


def on_and_on(content: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        while True:
            connection.sendall(content)

    return serve


NONSENSE = {
    "says nothing": say_nothing,
    "closes": lambda connection: None,
    "HTTP": answer(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "OK": answer(b"+OK\r\n" * 4),
    "numbers": answer(b":7\r\n" * 4),
    "lists": answer(b"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n" * 4),
    "no list": answer(b"$1\r\n7\r\n*-1\r\n"),
    "a long list": answer(b"*1000000\r\n"),
    "a large value": answer(b"$2000000000\r\nxxxx"),
    "lists in lists": answer(b"*1\r\n" * 100_000),
    "a drip": answer(b"$1000000\r\n" + b"x" * 1000, pause_seconds=0.05),
    "random bytes": answer(bytes(range(256)) * 10),
    "an error": answer(b"-LOADING not yet\r\n" * 4),
    "without end": on_and_on(b"$10\r\n0123456789\r\n"),
}


@contextmanager
def service(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """Another service than Redis; gives its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            serve(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                connections.append(connection)
                threads.append(threading.Thread(target=one, args=(connection,)))
                threads[-1].start()

    threads = [threading.Thread(target=accept)]
    threads[0].start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


@pytest.mark.rest
@pytest.mark.parametrize("serve", NONSENSE.values(), ids=NONSENSE)
def test_another_service_is_unavailable_in_time(serve: Callable[[socket.socket], object]) -> None:
    with service(serve) as address:
        store = open_store(impatient(address))
        calls: list[Callable[[], object]] = [
            lambda: store.get_many("values", [b"a", b"b"]),
            lambda: store.put_many("values", [Item(b"a", b"1")]),
            lambda: store.scan("values"),
        ]
        for call in calls:
            assert ended(call, TIMEOUT_SECONDS), "it worked"
        for other in (
            lambda: store.read("record"),
            lambda: store.swap("record", None, b"1"),
            lambda: store.create("values"),
            lambda: store.drop("values"),
            lambda: store.delete_many("values", [b"a"]),
        ):
            ended(other, TIMEOUT_SECONDS)  # "$-1" is a record that is not there: it may work
        store.close()


def test_the_password_grants_access(
    own_redis: Start[Redis], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_redis(password=True)
    assert server.password is not None
    file = tmp_path / "password"
    file.write_text("wrong\n")
    store = open_store(settings(server.address, password_file=file))
    with pytest.raises(Unavailable, match=r"(?i)password"):
        store.create("values")
    file.write_text(server.password + "\n")
    store.create("values")
    store.close()
    monkeypatch.setenv("REDIS_PASSWORD_OF_THE_TEST", server.password)
    store = open_store(
        settings(server.address, user="default", password_variable="REDIS_PASSWORD_OF_THE_TEST")
    )
    store.put_many("values", [Item(b"a", b"1")])
    store.close()
    store = open_store(settings(server.address))
    with pytest.raises(Unavailable, match=r"(?i)auth"):
        store.get_many("values", [b"a"])
    store.close()


@pytest.mark.rest
def test_a_server_is_known_by_its_certificate(own_redis: Start[Redis], tmp_path: Path) -> None:
    server = own_redis(tls=True)
    assert server.ca_file is not None
    store = open_store(impatient(server.address, tls=True, ca_file=Path(server.ca_file)))
    check_outages(store, server)
    store.close()
    for tls in (True, False):
        store = open_store(impatient(server.address, tls=tls))
        with pytest.raises(Unavailable):
            store.read("record")
        store.close()
    plain = own_redis()
    store = open_store(impatient(plain.address, tls=True, ca_file=Path(server.ca_file)))
    with pytest.raises(Unavailable):
        store.read("record")
    store.close()


def test_invalid_settings_are_refused_at_opening(tmp_path: Path) -> None:
    for wrong in (
        {"password_variable": "THERE_IS_NO_SUCH_VARIABLE"},
        {"password_file": tmp_path / "nothing"},
        {"user": "somebody"},
        {"tls": True, "ca_file": tmp_path / "nothing"},
        {"tls": True, "certificate_file": tmp_path / "nothing"},
        {"ca_file": tmp_path / "nothing"},
    ):
        with pytest.raises(ConfigError):
            open_store(settings("127.0.0.1:1", **wrong))


def test_dropped_partitions_are_removed(own_redis: Start[Redis]) -> None:
    server = own_redis()
    store = open_store(settings(server.address))
    store.create("values")
    store.put_many("values", [Item(b"%d" % number, b"") for number in range(5000)])
    store.drop("values")
    with redis.Redis.from_url(server.url) as client:

        def is_removed() -> bool:
            store.create("values")
            return not client.keys("headrace:v:*")

        eventually(is_removed)
    store.close()
