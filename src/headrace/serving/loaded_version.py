"""A loaded version being served: its Servable, its Batcher, and the caches of codecs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.clock import Clock
from headrace.batching.batcher import Batcher
from headrace.batching.calling_threads import Callers
from headrace.batching.capacity import Fit
from headrace.batching.lone_call import AtOnce
from headrace.batching.part_streams import PartStreams
from headrace.batching.policy_defaults import for_streams, inline_seconds, instances
from headrace.batching.request import Origin
from headrace.batching.statistics import VersionStatistics
from headrace.config import ModelConfig
from headrace.model.servable import Servable, Signature
from headrace.model.streaming_servable import is_streaming
from headrace.predictors.cached_predictor import Cached
from headrace.predictors.predictor import Predictor
from headrace.versions.manifest import published

if TYPE_CHECKING:
    from headrace.isolation.servable import IsolatedServable


class LoadedVersion:
    """One loaded version of a model, as ``Service.loaded`` returns it to a front end during a request.

    It is valid until the serving thread runs something else. The caller must check and submit at once,
    without awaiting anything in between, or hold a Lease. From then on, the Batcher's count of outstanding
    requests keeps the version loaded.

    Attributes:
        name: The model's name.
        version: The version's number.
        servable: The Servable that computes it.
        signatures: The signatures by name.
        platform: Name of the platform that runs it, in Triton's terms.
        config: The model's settings.
        path: The version directory; None for an object passed in process.
        batcher: Merges its requests.
        predictor: The Predictor that requests are submitted to: the Batcher, or one around it.
        at_once: Selects the calls of the serving thread that the Batcher answers before they await anything.
        callers: Answers calling threads directly; where it is None, the serving thread answers them. None if
            a Predictor wraps the Batcher, ``max_wait_seconds`` is set, or the version is isolated. Also None
            for a model's own code that is a coroutine or runs one call at a time, and for such objects passed
            in process.
        cache: The prediction cache; None without one.
        codec_cache: Cached knowledge of codecs about requests to this version; dropped with it.
        warmed: Fit of the batch costs measured at warm-up; None if it was not warmed up.
        published: Publication time in its manifest; None without a manifest.
        origin: The Origin of its answers.
        bare: The model itself if ``servable`` looks up its inputs; otherwise the same as ``servable``.
        load_seconds: Time that loading took, in seconds.
        answers: Whether it answered generated requests at warm-up.
        isolated: The Servable in processes of its own; None if it runs in this process.
        runs_code: Whether it runs code unknown to headrace in this process.
        streams: The open streams of a model that answers in parts, which is also its ``predictor``; None for
            any other model.
    """

    __slots__ = (
        "__weakref__", "_clock", "_leases", "_on_idle", "answers", "at_once", "bare", "batcher", "cache",
        "callers", "codec_cache", "config", "isolated", "load_seconds", "name", "origin", "path", "platform",
        "predictor", "published", "runs_code", "servable", "signatures", "streams", "version", "warmed",
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
            clock: The serving thread's Clock.
            path: The version directory, if there is one.
        """
        self.name, self.version = name, version
        self.servable = self.bare = servable
        self.load_seconds, self.answers = 0.0, False
        self.signatures: Mapping[str, Signature] = servable.signatures
        self.platform = servable.platform
        self.config = config = for_streams(config) if is_streaming(servable) else config
        self.path = path
        self.published = None if path is None else published(path)
        self.codec_cache: dict[object, object] = {}
        self.warmed: Fit | None = None
        self.origin = Origin(name, version)
        policy = config.batching
        self.batcher = Batcher(
            servable,
            policy,
            clock,
            instances=instances(policy),
            inline_seconds=inline_seconds(policy, servable),
            origin=self.origin,
        )
        self.predictor: Predictor = self.batcher
        self.at_once: AtOnce | None = AtOnce(self.batcher, clock)
        self.callers: Callers | None = None
        self.cache: Cached | None = None
        self.isolated: IsolatedServable | None = None
        self.runs_code = path is None
        # One instance of a model's own code means one call at a time, so there must be only one Batcher.
        one_at_a_time = policy.instances == 1 and (path is None or getattr(servable, "may_block", False))
        if not (policy.max_wait_seconds or one_at_a_time or getattr(servable, "loop", None)):
            self.callers = self._make_callers()
        self._count_objective(config.objective.latency_seconds)
        self.streams: PartStreams | None = None
        if is_streaming(servable):
            statistics = self.batcher.statistics
            self.predictor = self.streams = PartStreams(servable, policy, clock, self.origin, statistics)
            self.callers = self.at_once = None
        self._clock = clock
        self._leases = 0
        self._on_idle: Callable[[], object] | None = None

    def _make_callers(self) -> Callers:
        policy = self.config.batching
        return Callers(
            self.servable,
            policy,
            self.batcher.cost,
            instances=instances(policy),
            inline_seconds=inline_seconds(policy, self.servable),
            origin=self.origin,
        )

    def _count_objective(self, seconds: float) -> None:
        """Start statistics that count requests within the latency objective, if there is one."""
        if not seconds:
            return
        self.batcher.statistics = VersionStatistics(seconds)
        if self.callers is not None:
            self.callers.statistics = VersionStatistics(seconds)

    @property
    def statistics(self) -> VersionStatistics:
        """Statistics of the version over all threads."""
        if self.callers is None:
            return self.batcher.statistics
        return VersionStatistics.together(self.all_statistics())

    def all_statistics(self) -> tuple[VersionStatistics, ...]:
        """Return the statistics of the serving thread, and those of calling threads."""
        if self.callers is None:
            return (self.batcher.statistics,)
        return self.batcher.statistics, self.callers.statistics

    @property
    def trouble(self) -> str:
        """Why the loaded version currently cannot answer; "" if it can."""
        return self.isolated.trouble if self.isolated is not None else ""

    @property
    def outstanding(self) -> int:
        """Number of requests and Leases that still need it; it is unloaded only at zero."""
        inside = self.callers.outstanding if self.callers is not None else 0
        open_streams = self.streams.outstanding if self.streams is not None else 0
        return self.batcher.outstanding + self._leases + inside + open_streams

    def is_this_thread(self) -> bool:
        """Return whether the running thread computes answers of this version."""
        in_stream = self.streams is not None and self.streams.is_this_thread()
        return in_stream or self.batcher.instances.is_this_thread()

    @property
    def queued_rows(self) -> int:
        """Number of queued rows."""
        return self.batcher.queued_rows + (self.callers.queued_rows if self.callers is not None else 0)

    @property
    def on_idle(self) -> Callable[[], object] | None:
        """Callback that is called once, then cleared, when ``outstanding`` has reached zero."""
        return self._on_idle

    @on_idle.setter
    def on_idle(self, callback: Callable[[], object] | None) -> None:
        self._on_idle = callback
        self.batcher.on_idle = self._check_idle
        if self.streams is not None:
            self.streams.on_idle = self._check_idle
            self.streams.drain()
        if self.callers is not None:
            self.callers.on_idle = self._check_idle_soon
            self._clock.call_soon(self._check_idle)  # the last request may have ended just before

    def _check_idle_soon(self) -> None:
        """Schedule the idle check in the serving thread, unless that has ended. Thread-safe."""
        with suppress(RuntimeError):
            self._clock.call_soon_threadsafe(self._check_idle)

    def acquire(self) -> None:
        """Keep the version loaded until ``release``."""
        self._leases += 1

    def release(self) -> None:
        """Release the version, once; requests submitted in the same turn of the loop are still answered."""
        self._leases -= 1
        if self._on_idle is not None:
            self._clock.call_soon(self._check_idle)

    def _check_idle(self) -> None:
        callback = self._on_idle
        if callback is None:
            return
        if self.outstanding:
            self.batcher.on_idle = self._check_idle
            if self.streams is not None:
                self.streams.on_idle = self._check_idle
            return
        self._on_idle = self.batcher.on_idle = None
        if self.callers is not None:
            self.callers.on_idle = None
        if self.streams is not None:
            self.streams.drained()
        callback()
