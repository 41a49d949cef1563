"""One loaded version being served: the Servable, the Batcher before it, and what codecs remember of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from headrace import cpus
from headrace.batching.batcher import Batcher
from headrace.batching.statistics import VersionStatistics
from headrace.clock import Clock
from headrace.config import BatchingPolicy, ModelConfig
from headrace.lifecycle.manifest import published
from headrace.runtimes import registry
from headrace.servable import Servable, Signature
from headrace.tensors import Tensors
from headrace.warmup import warm_up

# With one core, a batch that runs where it stands saves two switches between threads and delays nobody who
# could have run meanwhile. With several, only what is cheaper than the switches themselves.
_INLINE_SECONDS_ON_ONE_CORE = 0.005
_INLINE_SECONDS = 0.00025


class LoadedVersion:
    """One loaded version of a model; what ``Service.loaded`` gives to a front end for the time of a request.

    It may be used from the moment it is got until the serving thread does something else: whoever gets one
    checks and submits at once, without awaiting anything in between. From then on the Batcher's count of
    outstanding requests keeps it loaded.

    Attributes:
        name: The model's name.
        version: The version's number.
        servable: What runs it.
        signatures: The ways to call it.
        platform: What runs it, in Triton's words.
        config: The model's settings.
        batcher: Merges the requests to it.
        codec_cache: What codecs have learnt about requests to this very version; dies with it.
        published: When it was published, as its manifest says; None without one.
    """

    __slots__ = (
        "__weakref__", "batcher", "codec_cache", "config", "name", "path", "platform", "published",
        "servable", "signatures", "version",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        version: int,
        servable: Servable,
        config: ModelConfig,
        clock: Clock,
        path: Path | None = None,
    ) -> None:
        """Put a Batcher in front of a Servable.

        Args:
            name: The model's name.
            version: The version's number.
            servable: The loaded model.
            config: The model's settings.
            clock: The serving thread's.
            path: The version directory, if there is one.
        """
        self.name = name
        self.version = version
        self.servable = servable
        self.signatures: Mapping[str, Signature] = servable.signatures
        self.platform = servable.platform
        self.config = config
        self.path = path
        self.published = None if path is None else published(path)
        self.codec_cache: dict[object, object] = {}
        policy = config.batching
        self.batcher = Batcher(
            servable,
            policy,
            clock,
            instances=instances(policy),
            inline_seconds=_inline_seconds(policy, servable),
            name=f"{name}/{version}",
        )

    @property
    def statistics(self) -> VersionStatistics:
        """What it has done."""
        return self.batcher.statistics

    @property
    def outstanding(self) -> int:
        """Requests that still need it; it is unloaded only at zero."""
        return self.batcher.outstanding

    @property
    def on_idle(self) -> Callable[[], object] | None:
        """Called whenever ``outstanding`` has come down to zero."""
        return self.batcher.on_idle

    @on_idle.setter
    def on_idle(self, callback: Callable[[], object] | None) -> None:
        self.batcher.on_idle = callback


def instances(policy: BatchingPolicy) -> int:
    """How many batches run side by side: as configured, or one a core."""
    return policy.instances or cpus.available()


def _inline_seconds(policy: BatchingPolicy, servable: Servable) -> float:
    if getattr(
        servable, "may_block", False
    ):  # waiting in the serving thread would stop everything, itself too
        return 0.0
    if policy.inline_seconds is not None:
        return policy.inline_seconds
    return _INLINE_SECONDS_ON_ONE_CORE if cpus.available() == 1 else _INLINE_SECONDS


@dataclass(frozen=True)
class VersionLoader:
    """Loads version directories, or hands out objects given in process; the Loader of the Manager.

    Attributes:
        clock: The serving thread's.
        serving_priority: A thread of ordinary priority; loader threads have the lowest.
        allow_code: Whether version directories may hold Python code that is run.
        call: Lets a Python model call another model, from its own thread.
        objects: Servables given in process, by model and version.
    """

    clock: Clock
    serving_priority: Executor
    allow_code: bool = False
    call: Callable[[str, Tensors], Tensors] | None = None
    objects: Mapping[tuple[str, int], Servable] = field(default_factory=dict)

    def load(self, model: str, version: int, path: Path, config: ModelConfig) -> LoadedVersion:
        """Load one version, in a loader thread.

        Raises:
            LoadError: No runtime can load it.
        """
        given = self.objects.get((model, version))
        if given is not None:
            return LoadedVersion(model, version, given, config, self.clock)
        options = self._options(config)
        if options.threads > 1:
            # A runtime's threads have the priority of the one that loads it, for good: not the loader's.
            servable = self.serving_priority.submit(registry.load, path, options).result()
        else:
            servable = registry.load(path, options)
        return LoadedVersion(model, version, servable, config, self.clock, path)

    def _options(self, config: ModelConfig) -> registry.RuntimeOptions:
        policy, runtime, signature = config.batching, config.runtime, config.signature
        threads = policy.threads_per_instance or cpus.share(cpus.available(), instances(policy))
        return registry.RuntimeOptions(
            kind=runtime.kind,
            threads=threads,
            trusted=runtime.trusted,
            allow_code=self.allow_code,
            options=runtime.options,
            signature=registry.SignatureSettings(
                kind=signature.kind,
                scores=signature.scores,
                classes=signature.classes,
                labels=signature.labels,
            ),
            call=self.call,
        )

    def warm_up(self, loaded: LoadedVersion) -> None:
        """Run recorded requests, or made-up ones, in a loader thread, and learn what batches cost.

        Raises:
            LoadError: A recorded request failed.
        """
        warm_up(loaded.servable, loaded.config, loaded.path, loaded.batcher.cost)

    def attach(self, loaded: LoadedVersion) -> None:
        """Called in the serving thread just before the version serves; there is nothing left to do."""

    def close(self, loaded: LoadedVersion) -> None:
        """Free a version that nobody uses any more, in a loader thread."""
        self.clock.call_soon_threadsafe(loaded.batcher.close)
        loaded.servable.close()
