"""Divide a whole server among its workers: its limits, its wanted state, and new connections; pure.

``transport.listening_sockets`` applies the decision about connections. The supervisor scans the disk, and
sends the wanted state to the ``ToldSource`` of each worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.base.errors import ConfigError
from headrace.config import ModelConfig, ServerConfig
from headrace.lifecycle.desired_state import Want, Wanted
from headrace.workers.messages import WantedModel, Wants

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


def of_wanted(models: Mapping[str, Wanted], unusable: Mapping[str, str], workers: int) -> Wants:
    """Return the message with a worker's wanted state.

    Args:
        models: Wanted state by model name.
        unusable: Names that cannot be used as models, with the reasons.
        workers: Number of workers, among which the models' cache sizes are divided.
    """
    return Wants(
        {
            name: WantedModel(
                versions=dict(one.versions),
                config=of_model(one.config, workers),
                labels=dict(one.labels),
                fingerprints={number: _as_number(found) for number, found in one.fingerprints.items()},
                problem=one.problem,
            )
            for name, one in models.items()
        },
        dict(unusable),
    )


def _as_number(fingerprint: object) -> int | None:
    return fingerprint if fingerprint is None or isinstance(fingerprint, int) else hash(fingerprint)


_FEW_SHARE = 0.75
"""A worker has few connections below this share of the mean."""
_LEAST_FEWER = 16
"""Smaller differences from the mean are ignored: connections are only estimated from open files."""


def taking(
    serving: Sequence[bool], late: Sequence[bool], suspect: Sequence[bool], ready: Sequence[bool]
) -> list[int]:
    """Return the workers that get new connections.

    Args:
        serving: By worker, whether it accepts connections.
        late: By worker, whether it began to accept after shutdown had begun.
        suspect: By worker, whether it has not answered recent beats.
        ready: By worker, whether its models have been tried and one is ready.

    Returns:
        The workers that accept, answer beats and are ready; if there are none, those that accept and answer
        beats; else those that accept. If none accepts, all workers: connections then wait in the backlog for
        the process that starts there. Late workers count only if no other accepts.
    """
    numbers = range(len(serving))
    early = [serving[one] and not late[one] for one in numbers]
    if any(early):
        serving = early
    return (
        [one for one in numbers if serving[one] and not suspect[one] and ready[one]]
        or [one for one in numbers if serving[one] and not suspect[one]]
        or [one for one in numbers if serving[one]]
        or list(numbers)
    )


def weighted(numbers: Sequence[int], connections: Sequence[int | None], most_connections: int) -> list[int]:
    """Name the workers with few connections twice, so that they get twice the share of new ones.

    After a worker has been restarted, the others have all connections. It catches up as clients reconnect,
    but a burst between two counts cannot overload it, because the others go on getting connections. A worker
    at the limit gets none while another one is below it.

    Args:
        numbers: The workers that get new connections.
        connections: By worker, its number of accepted connections. None if they cannot be counted, or if the
            worker has missed beats, because others may then wait in its backlog.
        most_connections: Limit of each worker; 0 for none.
    """
    counts = {one: count for one in numbers if (count := connections[one]) is not None}
    if most_connections:
        free = [one for one in numbers if counts.get(one, 0) < most_connections]
        numbers = free or numbers
    if not counts:
        return list(numbers)
    mean = sum(counts.values()) / len(counts)
    limit = min(_FEW_SHARE * mean, mean - _LEAST_FEWER)
    return [one for one in numbers for _ in range(2 if counts.get(one, mean) < limit else 1)]


class ToldSource:
    """The Source of a worker, fed by its supervisor. Serving thread only."""

    def __init__(self) -> None:
        """Create the Source without a wanted state."""
        self._want: Want | None = None
        self._last: Wants | None = None

    def made_for(self, want: Want) -> ToldSource:
        """Set the callback for the wanted state, and return the Source."""
        self._want = want
        return self

    def start(self) -> None:
        """Report the last wanted state, if there is one."""
        if self._last is not None:
            self.take(self._last)

    def stop(self) -> None:
        """Stop reporting."""
        self._want = None

    def take(self, wants: Wants) -> None:
        """Store and report the supervisor's message."""
        self._last = wants
        if self._want is not None:
            self._want(
                {
                    name: Wanted(one.versions, one.config, one.labels, one.fingerprints, one.problem)
                    for name, one in wants.models.items()
                },
                wants.unusable,
            )
