"""Divide the limits of a whole server among its workers; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.base.errors import ConfigError
from headrace.config import ModelConfig, ServerConfig

if TYPE_CHECKING:
    from headrace.archive.model.archive_toml import ArchiveConfig

_LEAST_CACHE_BYTES = 2**16  # the least that settings allow


def of_server(config: ServerConfig, workers: int) -> ServerConfig:
    """Return one worker's settings, with the limits on in-flight bytes and on connections divided.

    Args:
        config: The server's settings.
        workers: Number of workers.
    """
    limits = config.limits
    return msgspec.structs.replace(
        config,
        limits=msgspec.structs.replace(
            limits,
            # The largest message must fit, or requests would be refused that a single process accepts.
            max_inflight_bytes=max(limits.max_message_bytes, limits.max_inflight_bytes // workers),
            max_connections=-(-limits.max_connections // workers),  # 0 stays 0: no limit
        ),
    )


def of_model(config: ModelConfig, workers: int) -> ModelConfig:
    """Return one worker's settings of a model, with the size of the prediction cache divided.

    Args:
        config: The model's settings.
        workers: Number of workers.
    """
    cache = config.cache
    if not cache.size_bytes:
        return config
    part = max(_LEAST_CACHE_BYTES, cache.size_bytes // workers)
    return msgspec.structs.replace(config, cache=msgspec.structs.replace(cache, size_bytes=part))


def of_archive(config: ArchiveConfig, workers: int, *, fills: bool) -> ArchiveConfig:
    """Return one worker's settings of an archive, with its cache divided and filled by one worker only.

    Args:
        config: The archive's settings.
        workers: Number of workers.
        fills: Whether this worker is the one that fills the archive.

    Raises:
        ConfigError: The store or the queue is in memory, which processes cannot share.
    """
    for name, kind in (("store", type(config.store)), ("queue", type(config.queue))):
        if kind.__struct_config__.tag == "memory":
            raise ConfigError(
                f"{name}.kind: expected one that processes can share, such as lmdb, with "
                f"workers = {workers}, got 'memory'; or serve with one worker"
            )
    part = max(_LEAST_CACHE_BYTES, config.cache.size_bytes // workers)
    return msgspec.structs.replace(
        config,
        cache=msgspec.structs.replace(config.cache, size_bytes=part),
        fill=config.fill and fills,
    )
