"""The Service that every codec calls, shared by all protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version as installed_version
from itertools import chain
from typing import TYPE_CHECKING

from headrace.access.permissions import check_admin
from headrace.base.errors import NotFound
from headrace.batching.statistics import VersionCounts
from headrace.frontends.calls import Call
from headrace.frontends.metrics.engine_metrics import Families, families
from headrace.frontends.metrics.prometheus_formats import protobuf_pieces, text_pieces
from headrace.frontends.metrics.recent_load import Sampler
from headrace.frontends.metrics.tensorflow_names import TensorFlowMetrics
from headrace.frontends.wire import protos
from headrace.frontends.wire.json_cost import at_once_bytes
from headrace.frontends.wire.time_slicer import TimeSlicer
from headrace.lifecycle.version_states import State, VersionStatus
from headrace.serving.engine import Engine
from headrace.serving.loaded_version import LoadedVersion

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from headrace.batching.capacity import LoadReport


class Service:
    """Everything that clients can ask of a server. Serving thread only.

    Attributes:
        name: Name of the server.
        version: Version of headrace.
        limits: Limits on the cost of a request.
        slicer: Shared by large decodings and encodings, which take turns, a slice each.
        at_once_bytes: Largest JSON body in bytes that is decoded in one step.
        loaded: Finds the loaded version for a model and a version or label; see ``Manager.get``.
        predict: Answers checked inputs; see ``Engine.answer``.
        parts: Answers checked inputs in parts; see ``Engine.parts``.
        outcomes: Counts and records how calls end.
        guarded: Whether callers are identified and their models checked.
        services: Full names of the gRPC services that are served.
        as_protobuf: Whether metrics are also served as protobuf messages.
        tensorflow_metrics: TensorFlow Serving's own metrics; None unless the operator enables them.
    """

    name = "headrace"
    as_protobuf = True
    guarded = False

    def __init__(self, engine: Engine) -> None:
        """Serve the models of an engine."""
        self._engine = engine
        self._draining = self._going = False
        self.outcomes = engine.outcomes
        wanted = engine.config.tensorflow_metrics
        self.tensorflow_metrics = TensorFlowMetrics(engine.manager.knows) if wanted else None
        self.version = installed_version("headrace")
        self.services = protos.services()
        self._collectors: list[Collector] = []
        self._sampler = Sampler(engine)
        self.limits = engine.config.limits
        self.slicer, self._scrape_lane = TimeSlicer(), TimeSlicer()
        self.at_once_bytes = at_once_bytes(self.limits)
        # Assigned rather than wrapped: every request calls these.
        self.loaded = engine.manager.get
        self.predict = engine.answer
        self.parts = engine.parts

    def also_serves(self, service: str, collector: Collector) -> None:
        """Serve something besides models; call this before serving starts.

        Args:
            service: Full name of its gRPC service.
            collector: Provides its metrics.
        """
        self.services = tuple(sorted((*self.services, service)))
        self.also_measures(collector)

    def also_measures(self, collector: Collector) -> None:
        """Serve further metrics; call this before serving starts."""
        self._collectors.append(collector)

    def report_load(self, on_report: Callable[[LoadReport], object]) -> None:
        """Report the load of the server about once a second from now on.

        Args:
            on_report: Called with each report.
        """
        self._sampler.report_to(on_report)

    # --- health ---

    def live(self) -> bool:
        """Return whether the process answers: always true, as this call is an answer."""
        return True

    def ready(self) -> bool:
        """Return whether requests should be sent here: startup is complete and the server not stopping."""
        return not self._draining and self._engine.manager.ready()

    def model_ready(self, model: str, version: int | None = None) -> bool:
        """Return whether a model, or one version of it, answers.

        Raises:
            NotFound: There is no such model, or no such version of it.
        """
        if self._draining:
            return False
        if version is None:
            return self.answers(model)
        for status in self.status(model):
            if status.version == version:
                return status.answers
        raise NotFound(f"Servable not found for request: Specific({model}, {version})")

    def answers(self, model: str) -> bool:
        """Return whether any version of a model answers.

        Raises:
            NotFound: There is no such model.
        """
        return any(status.answers for status in self.status(model))

    @property
    def going(self) -> bool:
        """Whether endless streams, such as health watches, must end, so that the server can stop."""
        return self._going

    def drain(self) -> None:
        """Report from now on that no more requests should be sent here; those that arrive are answered."""
        self._draining = True

    def go(self) -> None:
        """Tell endless streams, such as health watches, to end, so that the server can stop."""
        self._going = True

    # --- models and metrics ---

    def models(self) -> list[str]:
        """Return the names of the models that are, or are to be, served."""
        return self._engine.manager.models()

    def status(self, model: str) -> list[VersionStatus]:
        """Return the versions of a model, newest first.

        Raises:
            NotFound: There is no such model.
        """
        return self._engine.manager.status(model)

    def problem(self, model: str) -> str:
        """Return why a model has no versions or is not served as configured; "" if nothing is wrong.

        Raises:
            NotFound: There is no such model.
        """
        return "; ".join(self._engine.manager.warnings(model))

    def labels(self, model: str) -> Mapping[str, int]:
        """Return the labels of a model with their versions.

        Raises:
            NotFound: There is no such model.
        """
        return self._engine.manager.labels(model)

    def default_version(self, model: str) -> int | None:
        """Return the version that answers when a request names none; None while there is none."""
        return self._engine.manager.default_version(model)

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return await self.own_metrics()

    async def own_metrics(self) -> bytes:
        """Return the metrics of this process. Requests are answered while they are collected."""
        text = text_pieces(self._families())
        counted = () if self.tensorflow_metrics is None else self.tensorflow_metrics.pieces()
        return await self._in_slices(map(str.encode, chain(text, counted)))

    async def counts(self, model: str = "", version: int | None = None) -> list[VersionCounts]:
        """Return the counts of one version, of all ready versions of a model, or of all models.

        Raises:
            HeadraceError: There is no such model or version, or it is not ready.
        """
        return self._own_counts([model] if model else self.models(), version)

    def _own_counts(self, models: Iterable[str], version: int | None) -> list[VersionCounts]:
        """Return the counts of this process, without checking whether the caller may see the models."""
        manager = self._engine.manager
        asked = [
            (model, number)
            for model in models
            for number in ([version] if version is not None else _ready(manager.status(model)))
        ]
        found = [manager.get(model, number) for model, number in asked]
        return [VersionCounts.of(one.name, one.version, one.statistics) for one in found]

    async def metrics_as_protobuf(self) -> bytes:
        """Return the metrics as Prometheus' protobuf messages, with native histograms."""
        families = self._families()
        if self.tensorflow_metrics is not None:
            families = chain(families, self.tensorflow_metrics.families())
        return await self._in_slices(protobuf_pieces(families))

    def _families(self) -> Families:
        self._sampler.watch()
        return families(self._engine, ready=self.ready(), others=self._collectors, sampler=self._sampler)

    async def _in_slices(self, pieces: Iterable[bytes]) -> bytes:
        made = []
        async with self._scrape_lane:
            for piece in pieces:
                if piece:
                    made.append(piece)
                await self._scrape_lane.breathe()
        return b"".join(made)

    # --- administration ---

    def reload(self, model: str) -> None:
        """Take a model back into service and retry its failed versions at once.

        Raises:
            FailedPrecondition: Administration is off.
            NotFound: There is no such model.
        """
        self._check_admin()
        self._engine.manager.reload(model)

    def unload(self, model: str) -> None:
        """Unload all versions of a model until it is loaded again.

        Raises:
            FailedPrecondition: Administration is off.
            NotFound: There is no such model.
        """
        self._check_admin()
        self._engine.manager.unload(model)

    def _check_admin(self) -> None:
        config = self._engine.config
        check_admin("loading and unloading", is_on=config.admin or config.has_admin_ports)


def _ready(statuses: Iterable[VersionStatus]) -> list[int]:
    return sorted(one.version for one in statuses if one.state is State.READY)


def refuse_unread(loaded: LoadedVersion, call: Call) -> None:
    """Refuse a call that cannot be answered by its deadline, whatever its inputs are.

    Codecs call this before they decode the inputs, which may cost as much as answering. Versions with a
    default or a prediction cache are exempt, as they may answer anyway.

    Args:
        loaded: The version that the call asks for.
        call: The call, with the deadline from its headers.

    Raises:
        Overloaded: The rows ahead of it take longer than its deadline allows.
    """
    if loaded.predictor is not loaded.batcher:
        return
    refusal = loaded.batcher.refusal_unread(call.deadline)
    if refusal is not None:
        if call.outcome is not None:
            call.outcome.handed_to(loaded.origin)
        raise refusal
