"""The store in a Cassandra cluster: one keyspace with a table for each partition and one for records."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from headrace.base.errors import Unavailable, needs_extra
from headrace.storage.settings import CassandraStore
from headrace.storage.stores.store import (
    LONGEST_KEY_BYTES,
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
    from cassandra import ConsistencyLevel, DriverException, InvalidRequest
    from cassandra.cluster import NoHostAvailable
    from cassandra.connection import ConnectionException
    from cassandra.protocol import ErrorMessage

    from headrace.storage.stores.cassandra_session import (
        RECORDS,
        CassandraSession,
        Query,
        Row,
        has_table,
        run_all,
    )
except ImportError as missing:
    raise needs_extra("kind = cassandra", "cassandra", missing) from missing

_LARGEST_PAGE = 5000
_PAUSE_SECONDS = 0.05
_WRITES_FOR_A_READ = 8
_FIRST_TOKEN = -(2**63)
_CURSOR, _TOKEN_BYTES = b"t", 8
# Cassandra stores expiry times in 31 bits and limits a TTL to 20 years. A longer TTL means no expiry.
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
    """The partition has no table."""


def _in_time(
    call: Callable[Concatenate[InCassandraStore, float, _Args], _Result],
) -> Callable[Concatenate[InCassandraStore, _Args], _Result]:
    """Pass a deadline to a call; raise driver errors and a missing table as ``Unavailable``."""

    @wraps(call)
    def timed(self: InCassandraStore, /, *args: _Args.args, **named: _Args.kwargs) -> _Result:
        try:
            return call(self, time.monotonic() + self.timeout_seconds, *args, **named)
        except (DriverException, NoHostAvailable, ErrorMessage, ConnectionException, OSError) as error:
            said = f"Cassandra: {str(error) or type(error).__name__}"
            raise Unavailable(said, told="the store does not answer") from error
        except _NoPartition as error:  # other calls catch it: only records have a table that must exist
            said = "Cassandra: the table of records is missing; restart the process, which creates it"
            raise Unavailable(said, told="the store does not answer") from error

    return timed


class InCassandraStore:
    """A Store on a Cassandra cluster.

    Attributes:
        is_local: False.
        timeout_seconds: Timeout of one call in seconds.
    """

    is_local = False

    def __init__(self, settings: CassandraStore) -> None:
        """Prepare the session; the first call connects.

        Raises:
            ConfigError: The password or a certificate file is missing or invalid.
        """
        self.timeout_seconds = settings.timeout_seconds
        self._settings = settings
        self._session = CassandraSession(settings)
        self._statements: dict[tuple[str, str], Any] = {}
        self._read_consistency = ConsistencyLevel.name_to_value[settings.read_consistency]
        self._serial = ConsistencyLevel.name_to_value[settings.serial_consistency]

    @_in_time
    def create(self, deadline: float, partition: str) -> None:
        """See Store."""
        check_partition(partition)
        session = self._session.ready(deadline)
        if not has_table(session, self._settings.keyspace, partition):
            session.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table(partition)} (key blob PRIMARY KEY, value blob)",
                timeout=_left(deadline),
            )
        # A new table is in the schema before it is usable, and other nodes learn of it later still.
        while not self._is_usable(session, partition):
            if time.monotonic() > deadline:
                raise Unavailable(f"Cassandra: the table of {partition!r} was not usable in time")
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
        """See Store. Cassandra removes the files by itself."""
        check_partition(partition)
        session = self._session.ready(deadline)
        self._forget(partition)
        if has_table(session, self._settings.keyspace, partition):
            session.execute(f"DROP TABLE IF EXISTS {self._table(partition)}", timeout=_left(deadline))

    @_in_time
    def get_many(
        self, deadline: float, partition: str, keys: Sequence[bytes], missing: bytes = b""
    ) -> list[bytes]:
        """See Store. Runs several queries of several keys each in parallel."""
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
        """See Store. Runs one query for each item, as items belong to different nodes."""
        check_items(items, ttl_seconds)
        ttl = _whole_seconds(ttl_seconds)
        try:
            self._run(deadline, partition, _INSERT, [(key, value, ttl) for key, value in dict(items).items()])
        except _NoPartition:
            raise not_there(partition) from None

    @_in_time
    def delete_many(self, deadline: float, partition: str, keys: Sequence[bytes]) -> None:
        """See Store."""
        wanted = [(key,) for key in dict.fromkeys(keys) if 0 < len(key) <= LONGEST_KEY_BYTES]
        try:
            self._run(deadline, partition, _DELETE, wanted)
        except _NoPartition:
            return

    @_in_time
    def scan(self, deadline: float, partition: str, cursor: bytes = START, limit: int = 1000) -> Page:
        """See Store. Keys come in token order; the last token is the cursor."""
        limit = min(max(limit, 1), _LARGEST_PAGE)
        try:
            (rows,) = self._run(deadline, partition, _SCAN, [(_token(cursor), limit)])
        except _NoPartition:
            return Page([], START)
        if len(rows) < limit:
            return Page([key for key, _ in rows], START)
        # Keys may share a token, though hardly ever, so the page may end between two such keys. Leave the
        # last token's keys to the next page, unless the whole page shares it, as with a ``limit`` of 1.
        last = rows[-1][1]
        before = [row for row in rows if row[1] != last] or rows
        token: int = before[-1][1]
        return Page([key for key, _ in before], _CURSOR + token.to_bytes(_TOKEN_BYTES, signed=True))

    @_in_time
    def read(self, deadline: float, name: str) -> bytes | None:
        """See Store. Reads with serial consistency, which sees the latest lightweight transaction."""
        check_record(name)
        (rows,) = self._run(deadline, RECORDS, _READ, [(name,)])
        value: bytes | None = rows[0][0] if rows else None
        return value

    @_in_time
    def swap(self, deadline: float, name: str, expected: bytes | None, value: bytes) -> bool:
        """See Store. Uses a lightweight transaction."""
        check_record(name, value)
        if expected is None:
            (rows,) = self._run(deadline, RECORDS, _MAKE, [(name, value)])
        else:
            (rows,) = self._run(deadline, RECORDS, _CHANGE, [(value, name, expected)])
        return bool(rows[0][0])

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def _run(
        self, deadline: float, partition: str, text: str, values: Sequence[Sequence[object]]
    ) -> list[Sequence[Row]]:
        """Run one statement on a partition's table, once for each set of values.

        Raises:
            _NoPartition: The partition has no table.
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
