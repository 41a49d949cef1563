"""One worker's part of what the settings grant the whole server: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.config import ModelConfig, ServerConfig
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.archive.config import ArchiveConfig

_LEAST_CACHE_BYTES = 2**16  # what settings may say


def of_server(config: ServerConfig, workers: int) -> ServerConfig:
    """One worker's settings: what all requests may hold, and how many connections there may be, divided.

    Args:
        config: The server's settings.
        workers: How many divide them.
    """
    limits = config.limits
    return msgspec.structs.replace(
        config,
        limits=msgspec.structs.replace(
            limits,
            # The largest message must fit, else a request would be refused that one process answers.
            max_inflight_bytes=max(limits.max_message_bytes, limits.max_inflight_bytes // workers),
            max_connections=-(-limits.max_connections // workers),  # 0 stays as many as can be had
        ),
    )


def of_model(config: ModelConfig, workers: int) -> ModelConfig:
    """One worker's settings of a model: the prediction cache divided.

    Args:
        config: The model's settings.
        workers: How many divide them.
    """
    cache = config.cache
    if not cache.size_bytes:
        return config
    part = max(_LEAST_CACHE_BYTES, cache.size_bytes // workers)
    return msgspec.structs.replace(config, cache=msgspec.structs.replace(cache, size_bytes=part))


def of_archive(config: ArchiveConfig, workers: int, *, fills: bool) -> ArchiveConfig:
    """One worker's settings of an archive: its cache divided, and filled by one worker only.

    Args:
        config: The archive's settings.
        workers: How many divide them.
        fills: Whether this one fills, if any does.

    Raises:
        ConfigError: Its store or its queue is in memory, of one process.
    """
    for name, kind in (("store", type(config.store)), ("queue", type(config.queue))):
        if kind.__struct_config__.tag == "memory":
            raise ConfigError(
                f"{name}.kind: expected one that processes share, such as lmdb, beside workers = {workers}, "
                "got 'memory'; or serve with one worker"
            )
    part = max(_LEAST_CACHE_BYTES, config.cache.size_bytes // workers)
    return msgspec.structs.replace(
        config,
        cache=msgspec.structs.replace(config.cache, size_bytes=part),
        fill=config.fill and fills,
    )
