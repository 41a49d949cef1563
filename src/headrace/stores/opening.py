"""Opens the store that the settings name; each kind is imported only when it is asked for."""

from __future__ import annotations

from headrace.stores.settings import AnyStore, CassandraStore, LmdbStore, RedisStore
from headrace.stores.store import Store


def open_store(settings: AnyStore) -> Store:
    """Open a store.

    One that is elsewhere and does not answer now is opened all the same: its calls end with ``Unavailable``
    until it does.

    Args:
        settings: Which, and where.

    Raises:
        ConfigError: A package is missing, or the settings can never work, as a file that is damaged.
        Unavailable: A store of this machine cannot be opened now: its disk is full.
    """
    if isinstance(settings, LmdbStore):
        from headrace.stores.lmdb import InLmdbStore  # noqa: PLC0415 - an extra

        return InLmdbStore(settings)
    if isinstance(settings, RedisStore):
        from headrace.stores.redis import InRedisStore  # noqa: PLC0415 - an extra

        return InRedisStore(settings)
    if isinstance(settings, CassandraStore):
        from headrace.stores.cassandra import InCassandraStore  # noqa: PLC0415 - an extra

        return InCassandraStore(settings)
    from headrace.stores.memory import InMemoryStore  # noqa: PLC0415 - only where it is asked for

    return InMemoryStore(settings)
