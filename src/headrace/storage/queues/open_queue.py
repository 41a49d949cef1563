"""Opens the queue that the settings name."""

from __future__ import annotations

from headrace.base.errors import needs_extra
from headrace.storage.queues.memory import MemoryMessages
from headrace.storage.queues.queue import Queue
from headrace.storage.queues.queue_settings import AnyQueue, KafkaQueue, LmdbQueue


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
