"""Defaults for settings that a batching policy leaves open; they depend on the machine and the model."""

from __future__ import annotations

from msgspec import structs

from headrace.base import cpus
from headrace.config import BatchingPolicy, ModelConfig
from headrace.model.servable import Servable

# On one core, an inline batch saves two thread switches and delays nothing that could have run meanwhile.
# On several cores, only batches cheaper than the switches themselves gain.
_INLINE_SECONDS_ON_ONE_CORE = 0.005
_INLINE_SECONDS = 0.00025

ASYNC_INSTANCES = 64
"""Default number of concurrent batches of a model whose calls are coroutines."""


def instances(policy: BatchingPolicy) -> int:
    """Return the most concurrent batches: as configured, or one per core."""
    return policy.instance_processes or policy.instances or cpus.available()


def with_instances(config: ModelConfig, usual: int) -> ModelConfig:
    """Return a model's settings with the runtime's default number of instances if they set none.

    Args:
        config: The model's settings.
        usual: The runtime's default number of instances; 0 for one per core.
    """
    batching = config.batching
    if batching.instances or batching.instance_processes or not usual:
        return config
    return structs.replace(config, batching=structs.replace(batching, instances=usual))


def for_streams(config: ModelConfig) -> ModelConfig:
    """Return the settings of a model that answers in parts: one call for each request."""
    batching = structs.replace(config.batching, enabled=False, max_batch_rows=1, allowed_batch_rows=())
    return structs.replace(config, batching=batching)


def threads_per_instance(policy: BatchingPolicy) -> int:
    """Return the number of threads one call may use: as configured, or the cores divided by instances."""
    return policy.threads_per_instance or cpus.share(cpus.available(), instances(policy))


def inline_seconds(policy: BatchingPolicy, servable: Servable) -> float:
    """Return the predicted duration below which a batch runs in the serving thread, in seconds."""
    if getattr(servable, "may_block", False):  # the serving thread may be the one it waits for
        return 0.0
    if policy.inline_seconds is not None:
        return policy.inline_seconds
    return _INLINE_SECONDS_ON_ONE_CORE if cpus.available() == 1 else _INLINE_SECONDS
