"""The store in a Cassandra cluster: a keyspace, in which each partition is a table, and so are records."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from headrace.errors import ConfigError, Unavailable
from headrace.stores.limits import check_items, check_partition, check_record, no_cursor, not_there
from headrace.stores.settings import CassandraStore
from headrace.stores.store import LONGEST_KEY_BYTES, START, Item, Page

try:
    from cassandra import ConsistencyLevel, DriverException, InvalidRequest
    from cassandra.cluster import NoHostAvailable
    from cassandra.connection import ConnectionException
    from cassandra.protocol import ErrorMessage

    from headrace.stores.cassandra_session import (
        RECORDS,
        CassandraSession,
        Query,
        Row,
        has_table,
        run_all,
    )
except ImportError as missing:
    raise ConfigError(
        f"kind = cassandra needs an extra ({missing}): pip install 'headrace[cassandra]'"
    ) from None

_LARGEST_PAGE = 5000
_PAUSE_SECONDS = 0.05
_WRITES_FOR_A_READ = 8
_FIRST_TOKEN = -(2**63)
_CURSOR, _TOKEN_BYTES = b"t", 8
# Cassandra keeps the end of a value's time in 31 bits, and takes 20 years at most: what lives longer stays.
_LAST_SECOND, _LONGEST_SECONDS = 2**31 - 2, 20 * 365 * 86_400
_NO_TABLE = re.compile(r"unconfigured table|table \S+ does not exist", re.IGNORECASE)

_SELECT = "SELECT key, value FROM {table} WHERE key IN ?"
_INSERT = "INSERT INTO {table} (key, value) VALUES (?, ?) USING TTL ?"
_DELETE = "DELETE FROM {table} WHERE key = ?"
_SCAN = "SELECT key, token(key) FROM {table} WHERE token(key) > ? LIMIT ?"
_READ = "SELECT value FROM {table} WHERE name = ?"
_MAKE = "INSERT INTO {table} (name, value) VALUES (?, ?) IF NOT EXISTS"
_CHANGE = "UPDATE {table} SET value = ? WHERE name = ? IF value = ?"
_READS = {_SELECT, _SCAN}

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class _NoPartition(Exception):
    """There is no table of a partition."""


def _in_time(
    call: Callable[Concatenate[InCassandraStore, float, _Args], _Result],
) -> Callable[Concatenate[InCassandraStore, _Args], _Result]:
    """Give a call its deadline, and have it end with an error of ours."""

    @wraps(call)
    def timed(self: InCassandraStore, /, *args: _Args.args, **named: _Args.kwargs) -> _Result:
        try:
            return call(self, time.monotonic() + self.timeout_seconds, *args, **named)
        except (DriverException, NoHostAvailable, ErrorMessage, ConnectionException, OSError) as error:
            said = f"Cassandra: {str(error) or type(error).__name__}"
            raise Unavailable(said, told="the store does not answer") from error

    return timed


class InCassandraStore:
    """A Store on a Cassandra cluster.

    Attributes:
        is_local: False.
        timeout_seconds: How long a call may take.
    """

    is_local = False

    def __init__(self, settings: CassandraStore) -> None:
        """Prepare; nothing is connected before the first call.

        Raises:
            ConfigError: The password or a certificate is not where the settings say.
        """
        self.timeout_seconds = settings.timeout_seconds
        self._settings = settings
        self._session = CassandraSession(settings)
        self._statements: dict[tuple[str, str], Any] = {}
        self._read_consistency = ConsistencyLevel.name_to_value[settings.read_consistency]
        self._serial = ConsistencyLevel.name_to_value[settings.serial_consistency]

    @_in_time
    def create(self, deadline: float, partition: str) -> None:
        """As the contract says."""
        check_partition(partition)
        session = self._session.ready(deadline)
        if not has_table(session, self._settings.keyspace, partition):
            session.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table(partition)} (key blob PRIMARY KEY, value blob)",
                timeout=_left(deadline),
            )
        # A table is in the schema a moment before it can be used, and other nodes hear of it later still.
        while not self._is_usable(session, partition):
            if time.monotonic() > deadline:
                raise Unavailable(f"Cassandra: the table of {partition!r} could not be used in time")
            time.sleep(_PAUSE_SECONDS)

    def _is_usable(self, session: Any, partition: str) -> bool:
        try:
            self._prepared(session, partition, _INSERT)
        except InvalidRequest as error:
            if not _NO_TABLE.search(str(error)):
                raise
            return False
        return True

    @_in_time
    def drop(self, deadline: float, partition: str) -> None:
        """As the contract says; Cassandra removes the files by itself."""
        check_partition(partition)
        session = self._session.ready(deadline)
        self._forget(partition)
        if has_table(session, self._settings.keyspace, partition):
            session.execute(f"DROP TABLE IF EXISTS {self._table(partition)}", timeout=_left(deadline))

    @_in_time
    def get_many(
        self, deadline: float, partition: str, keys: Sequence[bytes], missing: bytes = b""
    ) -> list[bytes]:
        """As the contract says; some keys a query, several queries at once."""
        wanted = [key for key in dict.fromkeys(keys) if 0 < len(key) <= LONGEST_KEY_BYTES]
        step = self._settings.keys_at_once
        chunks = [(wanted[start : start + step],) for start in range(0, len(wanted), step)]
        try:
            answers = self._run(deadline, partition, _SELECT, chunks)
        except _NoPartition:
            return [missing] * len(keys)
        found: dict[bytes, bytes] = {}
        for rows in answers:
            found.update(rows)
        return [found.get(key, missing) for key in keys]

    @_in_time
    def put_many(
        self, deadline: float, partition: str, items: Sequence[Item], ttl_seconds: float = 0.0
    ) -> None:
        """As the contract says; a query for each item, as they belong to different nodes."""
        check_items(items, ttl_seconds)
        ttl = _whole_seconds(ttl_seconds)
        try:
            self._run(deadline, partition, _INSERT, [(key, value, ttl) for key, value in dict(items).items()])
        except _NoPartition:
            raise not_there(partition) from None

    @_in_time
    def delete_many(self, deadline: float, partition: str, keys: Sequence[bytes]) -> None:
        """As the contract says."""
        wanted = [(key,) for key in dict.fromkeys(keys) if 0 < len(key) <= LONGEST_KEY_BYTES]
        try:
            self._run(deadline, partition, _DELETE, wanted)
        except _NoPartition:
            return

    @_in_time
    def scan(self, deadline: float, partition: str, cursor: bytes = START, limit: int = 1000) -> Page:
        """As the contract says: in the order of tokens, of which the last one is the cursor."""
        limit = min(max(limit, 1), _LARGEST_PAGE)
        try:
            (rows,) = self._run(deadline, partition, _SCAN, [(_token(cursor), limit)])
        except _NoPartition:
            return Page([], START)
        if len(rows) < limit:
            return Page([key for key, _ in rows], START)
        # Keys may share a token, and some of the last one's may be missing: they come with the next page,
        # unless all of this page's have it, which so many never do.
        last = rows[-1][1]
        before = [row for row in rows if row[1] != last] or rows
        token: int = before[-1][1]
        return Page([key for key, _ in before], _CURSOR + token.to_bytes(_TOKEN_BYTES, signed=True))

    @_in_time
    def read(self, deadline: float, name: str) -> bytes | None:
        """As the contract says: what was agreed on last."""
        check_record(name)
        (rows,) = self._run(deadline, RECORDS, _READ, [(name,)])
        value: bytes | None = rows[0][0] if rows else None
        return value

    @_in_time
    def swap(self, deadline: float, name: str, expected: bytes | None, value: bytes) -> bool:
        """As the contract says, by a lightweight transaction."""
        check_record(name, value)
        if expected is None:
            (rows,) = self._run(deadline, RECORDS, _MAKE, [(name, value)])
        else:
            (rows,) = self._run(deadline, RECORDS, _CHANGE, [(value, name, expected)])
        return bool(rows[0][0])

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _run(
        self, deadline: float, partition: str, text: str, values: Sequence[Sequence[object]]
    ) -> list[Sequence[Row]]:
        """Run one statement of a partition with several values.

        Raises:
            _NoPartition: There is no table of it.
        """
        session = self._session.ready(deadline)
        at_once = self._settings.queries_at_once * (1 if text in _READS else _WRITES_FOR_A_READ)
        try:
            statement = self._prepared(session, partition, text)
            queries: Iterator[Query] = (Query(statement, one) for one in values)
            return run_all(session, queries, deadline, min(at_once, max(len(values), 1)))
        except (InvalidRequest, ErrorMessage) as error:
            if not _NO_TABLE.search(str(error)):
                raise
            self._forget(partition)
            raise _NoPartition from error

    def _prepared(self, session: Any, partition: str, text: str) -> Any:
        statement = self._statements.get((partition, text))
        if statement is None:
            statement = session.prepare(text.format(table=self._table(partition)))
            statement.fetch_size = None
            statement.is_idempotent = text not in (_MAKE, _CHANGE)
            if text in _READS:
                statement.consistency_level = self._read_consistency
            if text == _READ:
                statement.consistency_level = self._serial
            self._statements[partition, text] = statement
        return statement

    def _forget(self, partition: str) -> None:
        for key in [key for key in self._statements if key[0] == partition]:
            self._statements.pop(key, None)

    def _table(self, partition: str) -> str:
        if partition == RECORDS:
            return f"{self._settings.keyspace}.{RECORDS}"
        check_partition(partition)
        return f'{self._settings.keyspace}."{partition}"'


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


def _whole_seconds(ttl_seconds: float) -> int:
    seconds = math.ceil(ttl_seconds)
    last = datetime.now(UTC).timestamp() + seconds
    return 0 if seconds > _LONGEST_SECONDS or last > _LAST_SECOND else seconds


def _token(cursor: bytes) -> int:
    if cursor == START:
        return _FIRST_TOKEN
    if cursor[:1] != _CURSOR or len(cursor) != 1 + _TOKEN_BYTES:
        raise no_cursor(cursor)
    return int.from_bytes(cursor[1:], signed=True)
