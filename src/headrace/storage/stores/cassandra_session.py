"""A session with a Cassandra cluster, opened by the first call; after a failure, later calls try again.

Connecting may take longer than a call's timeout. So one thread at a time connects, and callers wait for it
until their own deadlines. Once a session exists, the driver reconnects to failed nodes by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from cassandra import ConsistencyLevel
from cassandra.auth import AuthProvider, PlainTextAuthenticator
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.io.libevreactor import LibevConnection
from cassandra.policies import ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.query import tuple_factory

from headrace.base.errors import Unavailable
from headrace.storage.settings import (
    CassandraStore,
    RemoteStore,
    host_and_port,
    password,
    tls_context,
)

RECORDS = '"Records"'
"""The table of records. Its capital letter keeps it apart from partition names, which have none."""

Row = tuple[Any, ...]

# Servers of all supported releases speak this version.
_PROTOCOL_VERSION = 4
_RECONNECT_SECONDS = 0.5
_HEARTBEAT_SECONDS = 5
_CLOSE_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
_TOLD = "the store does not answer"


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return whether to log a record of the driver: all but "Error preparing query".

    The driver logs one with a traceback for each access to a missing partition.
    """
    return not str(record.msg).startswith("Error preparing query")


logging.getLogger("cassandra.cluster").addFilter(_is_worth_logging)


class Query(NamedTuple):
    """A statement with its values.

    Attributes:
        statement: A prepared statement.
        values: Values for its placeholders.
    """

    statement: Any
    values: Sequence[object]


class CassandraSession:
    """The one session of a store."""

    def __init__(self, settings: CassandraStore) -> None:
        """Check the password and certificates; do not connect.

        Raises:
            ConfigError: The password or a certificate file is missing or invalid.
        """
        password(settings)
        self._settings = settings
        self._tls = tls_context(settings)
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._connecting: Future[Session] | None = None
        self._failed_at = 0.0
        self._is_closed = False

    def ready(self, deadline: float) -> Session:
        """Return the session, connecting if there is none.

        Args:
            deadline: Deadline on the monotonic clock.

        Raises:
            Unavailable: Connecting failed or did not finish in time.
        """
        if self._session is not None:
            return self._session
        with self._lock:
            connecting = self._connecting
            is_over = connecting is not None and connecting.done() and connecting.exception() is not None
            if connecting is None or (is_over and time.monotonic() > self._failed_at + _PAUSE_SECONDS):
                self._connecting = connecting = Future()
                threading.Thread(target=self._connect, args=(connecting,), daemon=True).start()
        try:
            return connecting.result(max(deadline - time.monotonic(), 0))
        except TimeoutError:
            said = f"Cassandra at {self._contact_points()}: no connection in time"
            raise Unavailable(said, told=_TOLD) from None

    def _connect(self, connecting: Future[Session]) -> None:
        cluster = None
        try:
            cluster = self._cluster()
            session = cluster.connect()
            session.default_fetch_size = None
            # Timeout for preparing statements. With execution profiles the driver has no public setting for
            # it, and its default is ten seconds.
            session._default_timeout = self._settings.timeout_seconds
            self._prepare_keyspace(session)
        # Whatever the error, report it to the waiting callers; a later call retries.
        except Exception as error:  # noqa: BLE001
            if cluster is not None:
                cluster.shutdown()
            self._failed_at = time.monotonic()
            said = f"Cassandra at {self._contact_points()}: {_reason(error)}"
            connecting.set_exception(Unavailable(said, told=_TOLD))
        else:
            with self._lock:
                if not self._is_closed:
                    self._session = session
            connecting.set_result(session)
            if self._is_closed:
                cluster.shutdown()

    def _cluster(self) -> Cluster:
        settings = self._settings
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.datacenter)),
            consistency_level=ConsistencyLevel.name_to_value[settings.write_consistency],
            serial_consistency_level=ConsistencyLevel.name_to_value[settings.serial_consistency],
            request_timeout=settings.timeout_seconds,
            row_factory=tuple_factory,
        )
        points = [host_and_port(address) for address in settings.contact_points]
        return Cluster(
            contact_points=points,
            port=points[0][1],
            auth_provider=_Credentials(settings) if settings.user else None,
            ssl_context=self._tls,
            connection_class=LibevConnection,
            protocol_version=_PROTOCOL_VERSION,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=ConstantReconnectionPolicy(_RECONNECT_SECONDS, max_attempts=None),
            connect_timeout=settings.timeout_seconds,
            control_connection_timeout=settings.timeout_seconds,
            max_schema_agreement_wait=settings.timeout_seconds,
            idle_heartbeat_interval=_HEARTBEAT_SECONDS,
            idle_heartbeat_timeout=_HEARTBEAT_SECONDS,
            prepare_on_all_hosts=False,
        )

    def _prepare_keyspace(self, session: Session) -> None:
        settings = self._settings
        query = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"
        if not session.execute(query, (settings.keyspace,)).all():
            if not settings.create_keyspace:
                raise Unavailable(
                    f"there is no keyspace {settings.keyspace!r}: create it, or set store.create_keyspace"
                )
            copies = settings.replication or {"replication_factor": settings.replication_factor}
            told = ", ".join(f"'{name}': {count}" for name, count in copies.items())
            session.execute(
                f"CREATE KEYSPACE IF NOT EXISTS {settings.keyspace} "
                f"WITH replication = {{'class': 'NetworkTopologyStrategy', {told}}}"
            )
        if not has_table(session, settings.keyspace, RECORDS.strip('"')):
            session.execute(
                f"CREATE TABLE IF NOT EXISTS {settings.keyspace}.{RECORDS} "
                "(name text PRIMARY KEY, value blob)"
            )

    def _contact_points(self) -> str:
        return ", ".join(self._settings.contact_points)

    def close(self) -> None:
        """Close the session; wait for a connection that is being opened, which then closes itself."""
        with self._lock:
            self._is_closed = True
            connecting = self._connecting
        if self._session is not None:
            self._session.cluster.shutdown()
        elif connecting is not None and not connecting.done():
            try:
                connecting.result(_CLOSE_SECONDS)
            except (Unavailable, TimeoutError):
                return


class _Credentials(AuthProvider):  # type: ignore[misc] # the driver has no types
    """The login. The password is read again for each connection, so that it can be changed."""

    def __init__(self, settings: RemoteStore) -> None:
        self._settings = settings

    def new_authenticator(self, host: object) -> PlainTextAuthenticator:
        """Return the authenticator for a new connection."""
        return PlainTextAuthenticator(self._settings.user, password(self._settings) or "")


def has_table(session: Session, keyspace: str, table: str) -> bool:
    """Return whether a table exists."""
    query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    return bool(session.execute(query, (keyspace, table)).all())


def run_all(session: Session, queries: Iterable[Query], deadline: float, at_once: int) -> list[Sequence[Row]]:
    """Run queries in parallel.

    Args:
        session: The session to run them in.
        queries: Any number of queries.
        deadline: Deadline on the monotonic clock.
        at_once: Maximum number of queries in flight.

    Returns:
        The rows of each query, in the order of ``queries``.

    Raises:
        Unavailable: Not all queries were answered in time.
        Exception: The driver's error for the first query that failed.
    """
    answers: list[Sequence[Row]] = []
    errors: list[Exception] = []
    permits = threading.Semaphore(at_once)

    def take() -> None:
        if not permits.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise Unavailable("Cassandra did not answer in time")

    for number, query in enumerate(queries):
        take()
        if errors:
            break
        answers.append(())
        bound = query.statement.bind(query.values)
        future = session.execute_async(bound, timeout=max(deadline - time.monotonic(), 0.001))
        future.add_callbacks(_answered(answers, number, permits), _failed(errors, permits))
    else:
        for _ in range(at_once):
            take()
    if errors:
        raise errors[0]
    return answers


def _answered(
    answers: list[Sequence[Row]], number: int, permits: threading.Semaphore
) -> Callable[[Sequence[Row] | None], None]:
    def take(rows: Sequence[Row] | None) -> None:
        answers[number] = rows or ()
        permits.release()

    return take


def _failed(errors: list[Exception], permits: threading.Semaphore) -> Callable[[Exception], None]:
    def take(error: Exception) -> None:
        errors.append(error)
        permits.release()

    return take


def _reason(error: Exception) -> str:
    """Return why connecting failed, in words: some of the driver's errors have no text."""
    from cassandra import UnresolvableContactPoints  # noqa: PLC0415 - an extra

    if isinstance(error, UnresolvableContactPoints):
        return "none of these names could be resolved"
    return str(error) or type(error).__name__
