"""Open the store and the queue that the settings name. Each kind is imported only when it is used."""

from __future__ import annotations

from headrace.base.errors import needs_extra
from headrace.storage.queues.memory import MemoryMessages
from headrace.storage.queues.queue import Queue
from headrace.storage.settings import (
    AnyQueue,
    AnyStore,
    CassandraStore,
    KafkaQueue,
    LmdbQueue,
    LmdbStore,
    RedisStore,
)
from headrace.storage.stores.store import Store


def open_store(settings: AnyStore) -> Store:
    """Open a store.

    A remote store is opened even if it does not answer now: its calls raise ``Unavailable`` until it does.

    Args:
        settings: Kind and location of the store.

    Raises:
        ConfigError: A package is missing, a setting is invalid, or the store's file is damaged.
        Unavailable: A store on this machine cannot be opened now, for example because its disk is full.
    """
    if isinstance(settings, LmdbStore):
        from headrace.storage.stores.lmdb import InLmdbStore  # noqa: PLC0415 - an extra

        return InLmdbStore(settings)
    if isinstance(settings, RedisStore):
        from headrace.storage.stores.redis import InRedisStore  # noqa: PLC0415 - an extra

        return InRedisStore(settings)
    if isinstance(settings, CassandraStore):
        from headrace.storage.stores.cassandra import InCassandraStore  # noqa: PLC0415 - an extra

        return InCassandraStore(settings)
    from headrace.storage.stores.memory import InMemoryStore  # noqa: PLC0415 - imported only when used

    return InMemoryStore(settings)


def open_queue(settings: AnyQueue) -> Queue:
    """Open a queue.

    Args:
        settings: Kind and location of the queue.

    Raises:
        ConfigError: The queue cannot be opened, or its package is not installed.
        Unavailable: A queue on this machine cannot be opened now, for example because its disk is full.
    """
    if isinstance(settings, LmdbQueue):
        try:
            from headrace.storage.queues.lmdb import LmdbMessages  # noqa: PLC0415  # an optional package
        except ImportError as error:
            raise needs_extra("queue.kind = lmdb", "archive", error) from error
        return LmdbMessages(settings)
    if isinstance(settings, KafkaQueue):
        try:
            from headrace.storage.queues.kafka import KafkaMessages  # noqa: PLC0415  # an optional package
        except ImportError as error:
            raise needs_extra("queue.kind = kafka", "kafka", error) from error
        return KafkaMessages(settings)
    return MemoryMessages(settings)
