"""The store in a Redis server.

All keys begin with the configured prefix. ``partitions`` is a hash from names to numbers. ``number`` is the
last number assigned; none is reused. ``dropped`` is a hash from dropped numbers to the cursor of their
removal. ``record:NAME`` is a record, and ``v:NUMBER:KEY`` a value. Creating, dropping, putting and swapping
use scripts, which Redis runs atomically.
"""

from __future__ import annotations

import math
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from hashlib import sha1
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from headrace.base.errors import ConfigError, Unavailable, needs_extra
from headrace.storage.settings import (
    RedisStore,
    RemoteStore,
    host_and_port,
    password,
    tls_context,
)
from headrace.storage.stores.store import (
    START,
    Item,
    Page,
    check_items,
    check_partition,
    check_record,
    no_cursor,
    not_there,
)

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as missing:
    raise needs_extra("kind = redis", "redis", missing) from missing

# Connections have a deadline for each call, whatever the server does. redis-py's timeout applies to each
# socket read, not to the whole call. A server that sends one byte a second would block a call for ever. So
# each read of this socket is limited to the time left until the call's deadline.

_call = threading.local()
# Timeout for operations outside a call, such as closing.
_NO_CALL_SECONDS = 5.0


@contextmanager
def ending_in(seconds: float) -> Iterator[None]:
    """Set a deadline for the calls that this thread makes in the context."""
    _call.deadline = time.monotonic() + seconds
    try:
        yield
    finally:
        del _call.deadline


def left() -> float:
    """Return the seconds left until the deadline of this thread's call.

    Raises:
        TimeoutError: The deadline has passed.
    """
    seconds: float = getattr(_call, "deadline", time.monotonic() + _NO_CALL_SECONDS) - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the call timed out")
    return seconds


class TimedSocket:
    """A socket whose reads and writes are limited to the call's deadline; all else is passed through."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        self._socket = connected

    def recv_into(self, buffer: bytearray) -> int:
        """Read within the time left, or without blocking if the socket is non-blocking."""
        if self._socket.gettimeout() != 0:
            self._socket.settimeout(left())
        return self._socket.recv_into(buffer)

    def sendall(self, content: bytes) -> None:
        """Write within the time left."""
        self._socket.settimeout(left())
        self._socket.sendall(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class TimedConnection(redis.Connection):  # type: ignore[misc] # its types are incomplete
    """redis-py's connection over a ``TimedSocket``, with TLS if a context is given."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, **options: Any) -> None:
        """Create a connection with redis-py's options and an optional TLS context."""
        self._tls = tls
        super().__init__(**options)

    def _connect(self) -> socket.socket:
        self.socket_connect_timeout = left()
        connected: socket.socket = super()._connect()
        try:
            if self._tls is not None:
                connected = _handshake(self._tls, connected, self.host)
            connected.settimeout(left())
        except BaseException:
            connected.close()
            raise
        return cast("socket.socket", TimedSocket(connected))


def _handshake(tls: ssl.SSLContext, connected: socket.socket, host: str) -> ssl.SSLSocket:
    connected.setblocking(False)
    secure = tls.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                select.select([secure], [], [], left())
            except ssl.SSLWantWriteError:
                select.select([], [secure], [], left())
            else:
                return secure
    except BaseException:
        secure.close()
        raise


class Credentials(redis.CredentialProvider):  # type: ignore[misc] # as above
    """The login. The password is read again for each connection, so that it can be changed."""

    def __init__(self, settings: RemoteStore) -> None:
        """Keep the settings that say where the password is."""
        self._settings = settings

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the user name, if there is one, and the password."""
        secret = password(self._settings) or ""
        return (self._settings.user, secret) if self._settings.user else (secret,)


_MOST_CONNECTIONS = 1024
_READ_AT_ONCE = 1000
# One script, or one round of removals, blocks other calls to Redis for about a millisecond.
_WRITTEN_AT_ONCE, _WRITTEN_BYTES_AT_ONCE = 500, 4 * 2**20
_SCANNED_AT_ONCE = 1000
_LARGEST_PAGE = 100_000
_PARTITION_CHANGES = 3
_CURSOR = re.compile(rb"[1-9][0-9]{0,19}")
_TOLD = "the store does not answer"
_LONGEST_MILLISECONDS = 10**15
# Errors that redis-py and its parsers raise when the server is not Redis and sends something else.
_PROTOCOL_ERRORS = (
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
)

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class _Script(NamedTuple):
    text: bytes
    digest: str


def _script(text: str) -> _Script:
    return _Script(text.encode(), sha1(text.encode(), usedforsecurity=False).hexdigest())


_CREATE = _script("""
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    redis.call('HSET', KEYS[1], ARGV[1], redis.call('INCR', KEYS[2]))
end
return 1
""")
_DROP = _script("""
local number = redis.call('HGET', KEYS[1], ARGV[1])
if number then
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('HSET', KEYS[2], number, '0')
end
return 1
""")
_PUT = _script("""
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
    return 0
end
for i = 2, #KEYS do
    if ARGV[3] == '0' then
        redis.call('SET', KEYS[i], ARGV[i + 2])
    else
        redis.call('SET', KEYS[i], ARGV[i + 2], 'PX', ARGV[3])
    end
end
return 1
""")
_SWAP = _script("""
local now = redis.call('GET', KEYS[1])
if ARGV[1] == '0' then
    if now then return 0 end
elseif now ~= ARGV[2] then
    return 0
end
redis.call('SET', KEYS[1], ARGV[3])
return 1
""")


def _in_time(
    call: Callable[Concatenate[InRedisStore, _Args], _Result],
) -> Callable[Concatenate[InRedisStore, _Args], _Result]:
    """Limit a call to the timeout and raise errors of redis-py as ``Unavailable``."""

    @wraps(call)
    def timed(self: InRedisStore, /, *args: _Args.args, **named: _Args.kwargs) -> _Result:
        try:
            with ending_in(self.timeout_seconds):
                return call(self, *args, **named)
        except (redis.RedisError, OSError) as error:
            raise Unavailable(f"Redis at {self.address}: {_said(error)}", told=_TOLD) from error
        except ConfigError as error:  # the password was removed after the store was opened
            raise Unavailable(error.message, told=_TOLD) from error
        except _PROTOCOL_ERRORS as error:
            said = f"{self.address} does not speak the Redis protocol: {_said(error)}"
            raise Unavailable(said, told=_TOLD) from error

    return timed


class InRedisStore:
    """A Store on a Redis server.

    Attributes:
        is_local: False.
        address: Address of the server.
        timeout_seconds: Timeout of one call in seconds.
    """

    is_local = False

    def __init__(self, settings: RedisStore) -> None:
        """Prepare the connection pools; the first call connects.

        Raises:
            ConfigError: The password or a certificate file is missing or invalid.
        """
        host, port = host_and_port(settings.address)
        options: dict[str, Any] = {
            "connection_class": TimedConnection,
            "max_connections": _MOST_CONNECTIONS,
            "host": host,
            "port": port,
            "db": settings.database,
            "tls": tls_context(settings),
            "socket_timeout": settings.timeout_seconds,
            "protocol": 2,  # servers of all versions speak it
            "driver_info": None,
            # With TLS, redis-py considers a connection idle only after a read; this makes it read an answer.
            "client_name": "headrace" if settings.tls else None,
        }
        if password(settings) is not None:
            options["credential_provider"] = Credentials(settings)
        self.address = settings.address
        self.timeout_seconds = settings.timeout_seconds
        # Retry once: a connection that the server has closed fails only at its next call.
        self._reading = _client(1, options)
        # Never retry a swap: the second try would see the value that the first one wrote.
        self._swapping = _client(0, options)
        self._prefix = settings.prefix.encode() + b":"
        self._numbers: dict[str, bytes] = {}

    @_in_time
    def create(self, partition: str) -> None:
        """See Store."""
        check_partition(partition)
        self._run(self._reading, _CREATE, [b"partitions", b"number"], [partition.encode()])
        self._remove_dropped(time.monotonic())

    @_in_time
    def drop(self, partition: str) -> None:
        """See Store. Deletes the name, then values for up to half of the timeout; later calls continue."""
        check_partition(partition)
        self._run(self._reading, _DROP, [b"partitions", b"dropped"], [partition.encode()])
        self._remove_dropped(time.monotonic() + self.timeout_seconds / 2)

    def _remove_dropped(self, until: float) -> None:
        """Remove dropped values until a time, at least one slice; progress is kept in Redis."""
        dropped: dict[bytes, bytes] = self._reading.hgetall(self._prefix + b"dropped")
        for number, reached in dropped.items():
            pattern = self._values(number) + b"*"
            cursor = reached
            while True:
                cursor, keys = self._scan(cursor, pattern, _SCANNED_AT_ONCE)
                if keys:
                    self._reading.unlink(*keys)
                if cursor == b"0":
                    self._reading.hdel(self._prefix + b"dropped", number)
                    break
                self._reading.hset(self._prefix + b"dropped", number, cursor)
                if time.monotonic() >= until:
                    return

    @_in_time
    def get_many(self, partition: str, keys: Sequence[bytes], missing: bytes = b"") -> list[bytes]:
        """See Store. The same round trip checks that the partition's number is unchanged."""
        values: list[bytes | None] = []
        number = self._numbers.get(partition) or self._number(partition)
        for _ in range(_PARTITION_CHANGES):
            if number is None or not keys:
                return [missing] * len(keys)
            prefix = self._values(number)
            asked = self._reading.pipeline(transaction=False)
            asked.hget(self._prefix + b"partitions", partition)
            for start in range(0, len(keys), _READ_AT_ONCE):
                asked.execute_command("MGET", *map(prefix.__add__, keys[start : start + _READ_AT_ONCE]))
            now, *answers = asked.execute()
            self._remember(partition, now)
            if now == number:
                values = [value for answer in answers for value in answer]
                break
            number = now
        return _checked(values, len(keys), missing)

    def _number(self, partition: str) -> bytes | None:
        now: bytes | None = self._reading.hget(self._prefix + b"partitions", partition)
        self._remember(partition, now)
        return now

    def _remember(self, partition: str, number: bytes | None) -> None:
        if number is None:
            self._numbers.pop(partition, None)
        elif not number.isdigit():
            raise ValueError(f"unexpected partition number {number!r}")
        else:
            self._numbers[partition] = number

    @_in_time
    def put_many(self, partition: str, items: Sequence[Item], ttl_seconds: float = 0.0) -> None:
        """See Store. Runs scripts that write a few hundred values each."""
        check_items(items, ttl_seconds)
        time_to_live = b"%d" % min(math.ceil(ttl_seconds * 1000), _LONGEST_MILLISECONDS)
        for some in _slices(items):
            self._put(partition, some, time_to_live)

    def _put(self, partition: str, items: Sequence[Item], time_to_live: bytes) -> None:
        number = self._numbers.get(partition) or self._number(partition)
        for _ in range(_PARTITION_CHANGES):
            if number is None:
                raise not_there(partition)
            prefix = b"v:" + number + b":"
            written = self._run(
                self._reading,
                _PUT,
                [b"partitions", *(prefix + key for key, _ in items)],
                [partition.encode(), number, time_to_live, *(value for _, value in items)],
            )
            if _is_done(written):
                return
            number = self._number(partition)
        raise not_there(partition)

    @_in_time
    def delete_many(self, partition: str, keys: Sequence[bytes]) -> None:
        """See Store."""
        number = self._number(partition)
        if number is not None and keys:
            asked = self._reading.pipeline(transaction=False)
            for start in range(0, len(keys), _READ_AT_ONCE):
                asked.unlink(*map(self._values(number).__add__, keys[start : start + _READ_AT_ONCE]))
            asked.execute()

    @_in_time
    def scan(self, partition: str, cursor: bytes = START, limit: int = 1000) -> Page:
        """See Store. Slow with many partitions: Redis walks the keys of all of them."""
        if cursor != START and (not _CURSOR.fullmatch(cursor) or int(cursor) >= 2**64):
            raise no_cursor(cursor)
        number = self._number(partition)
        if number is None:
            return Page([], START)
        prefix = self._values(number)
        now, keys = self._scan(cursor or b"0", prefix + b"*", min(max(limit, 1), _LARGEST_PAGE))
        return Page([key[len(prefix) :] for key in keys], START if now == b"0" else now)

    def _scan(self, cursor: bytes, pattern: bytes, limit: int) -> tuple[bytes, list[bytes]]:
        command = ("SCAN", cursor, "MATCH", pattern, "COUNT", limit)
        # Sent as a raw command: redis-py would convert the cursor to a number and invalid ones to text.
        pool = self._reading.connection_pool
        connection = pool.get_connection()
        try:
            now, keys = connection.retry.call_with_retry(
                lambda: _ask(connection, command), lambda error: connection.disconnect(error=error)
            )
        finally:
            pool.release(connection)
        if not isinstance(now, bytes) or not now.isdigit():
            raise ValueError(f"unexpected SCAN cursor {now!r}")
        return now, keys

    @_in_time
    def read(self, name: str) -> bytes | None:
        """See Store."""
        check_record(name)
        value = self._reading.get(self._prefix + b"record:" + name.encode())
        if value is not None and not isinstance(value, bytes):
            raise ValueError(f"unexpected record {value!r}")
        return value

    @_in_time
    def swap(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """See Store."""
        check_record(name, value)
        was = [b"0", b""] if expected is None else [b"1", expected]
        written = self._run(self._swapping, _SWAP, [b"record:" + name.encode()], [*was, value])
        return _is_done(written)

    def close(self) -> None:
        """Close all connections."""
        for client in (self._reading, self._swapping):
            client.connection_pool.disconnect()

    def _values(self, number: bytes) -> bytes:
        return self._prefix + b"v:" + number + b":"

    def _run(
        self, client: redis.Redis, script: _Script, keys: Sequence[bytes], arguments: Sequence[bytes]
    ) -> object:
        """Run a script by its digest; send its text if Redis does not have it cached."""
        named = [self._prefix + key for key in keys]
        try:
            return client.execute_command("EVALSHA", script.digest, len(named), *named, *arguments)
        except redis.exceptions.NoScriptError:
            return client.execute_command("EVAL", script.text, len(named), *named, *arguments)


def _ask(connection: Any, command: Sequence[object]) -> Any:
    connection.send_command(*command)
    return connection.read_response()


def _client(retries: int, options: dict[str, Any]) -> redis.Redis:
    """Return a client with a pool of its own: retries are set per connection, and a client's are ignored."""
    retry = Retry(NoBackoff(), retries, supported_errors=(redis.ConnectionError,))
    return redis.Redis(connection_pool=redis.ConnectionPool(retry=retry, **options))


def _is_done(written: object) -> bool:
    if not isinstance(written, int) or written not in (0, 1):
        raise ValueError(f"unexpected script result {written!r}")
    return bool(written)


def _checked(values: list[bytes | None], wanted: int, missing: bytes) -> list[bytes]:
    """Return the values of an answer, missing ones replaced, after checking their number and types."""
    if len(values) != wanted or not set(map(type, values)) <= {bytes, type(None)}:
        raise ValueError(f"unexpected MGET result with {len(values)} values for {wanted} keys")
    return [missing if value is None else value for value in values]


def _slices(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    start = size = 0
    for number, item in enumerate(items):
        size += len(item.value)
        if number - start == _WRITTEN_AT_ONCE or size > _WRITTEN_BYTES_AT_ONCE:
            yield items[start:number]
            start, size = number, len(item.value)
    yield items[start:]


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
