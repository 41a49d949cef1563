"""What a batching policy leaves open: it depends on the machine and on the model."""

from __future__ import annotations

from msgspec import structs

from headrace import cpus
from headrace.config import BatchingPolicy, ModelConfig
from headrace.servable import Servable

# With one core, a batch that runs where it stands saves two switches between threads and delays nobody who
# could have run meanwhile. With several, only what is cheaper than the switches themselves.
_INLINE_SECONDS_ON_ONE_CORE = 0.005
_INLINE_SECONDS = 0.00025


def instances(policy: BatchingPolicy) -> int:
    """Return the most batches that run side by side: as configured, or one a core."""
    return policy.instance_processes or policy.instances or cpus.available()


def with_instances(config: ModelConfig, usual: int) -> ModelConfig:
    """A model's settings, with as many instances as its runtime wants where they do not say.

    Args:
        config: The settings.
        usual: How many its runtime wants; 0 for one a core.
    """
    batching = config.batching
    if batching.instances or batching.instance_processes or not usual:
        return config
    return structs.replace(config, batching=structs.replace(batching, instances=usual))


def threads_per_instance(policy: BatchingPolicy) -> int:
    """Return how many threads one call may use: as configured, or the cores divided by the instances."""
    return policy.threads_per_instance or cpus.share(cpus.available(), instances(policy))


def inline_seconds(policy: BatchingPolicy, servable: Servable) -> float:
    """Return how short a batch must be predicted to be to run in the serving thread."""
    if getattr(servable, "may_block", False):  # waiting there would stop everything, itself too
        return 0.0
    if policy.inline_seconds is not None:
        return policy.inline_seconds
    return _INLINE_SECONDS_ON_ONE_CORE if cpus.available() == 1 else _INLINE_SECONDS
