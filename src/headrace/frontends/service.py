"""The Service: what every protocol's codec asks, and nothing that knows a protocol."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING

from headrace.engine import Engine
from headrace.errors import FailedPrecondition, NotFound
from headrace.frontends.metrics import exposition
from headrace.frontends.tensorflow_metrics import TensorFlowMetrics
from headrace.frontends.wire import protos
from headrace.frontends.wire.json_cost import at_once_bytes
from headrace.frontends.wire.lane import Lane
from headrace.lifecycle.state import State, VersionStatus

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


class Service:
    """What clients can ask of a server. Serving thread only.

    Attributes:
        name: What the server calls itself.
        version: The version of headrace.
        limits: What a request may cost.
        lane: Where large bodies are decoded, one at a time.
        at_once_bytes: Up to how many bytes JSON is decoded at once.
        loaded: The loaded version that a request means, by model, version and label; see ``Engine.loaded``.
        predict: Predicts and is awaited; see ``Engine.answer``.
        outcomes: Where calls end.
        services: The full names of the gRPC services that are served.
        tensorflow_metrics: Counts as TensorFlow Serving does; None where nobody asks for it.
    """

    name = "headrace"

    def __init__(self, engine: Engine) -> None:
        """Stand before an engine."""
        self._engine = engine
        self._draining = False
        self.outcomes = engine.outcomes
        wanted = engine.config.tensorflow_metrics
        self.tensorflow_metrics = TensorFlowMetrics(engine.manager.knows) if wanted else None
        self.version = installed_version("headrace")
        self.services = protos.services()
        self._collectors: list[Collector] = []
        self.limits = engine.config.limits
        self.lane = Lane()
        self.at_once_bytes = at_once_bytes(self.limits)
        # Handed through rather than wrapped: these are on every request's way.
        self.loaded = engine.manager.get
        self.predict = engine.answer

    def also_serves(self, service: str, collector: Collector) -> None:
        """Serve something beside models, from the start.

        Args:
            service: The full name of its gRPC service.
            collector: Gives its metrics.
        """
        self.services = tuple(sorted((*self.services, service)))
        self._collectors.append(collector)

    # --- health ---

    def live(self) -> bool:
        """Whether the process answers; it does, if it gets to say so."""
        return True

    def ready(self) -> bool:
        """Whether requests should be sent here: each model has been tried, and the server is not stopping."""
        return not self._draining and self._engine.manager.ready()

    def model_ready(self, model: str, version: int | None = None) -> bool:
        """Whether a model, or one version of it, answers.

        Raises:
            NotFound: There is no such model, or no such version of it.
        """
        if self._draining:
            return False
        statuses = self.status(model)
        if version is None:
            return any(status.state is State.READY for status in statuses)
        for status in statuses:
            if status.version == version:
                return status.state is State.READY
        raise NotFound(f"Servable not found for request: Specific({model}, {version})")

    @property
    def draining(self) -> bool:
        """Whether the server is stopping."""
        return self._draining

    def drain(self) -> None:
        """From now on say that no more requests should be sent here; those that come are answered."""
        self._draining = True

    # --- what there is ---

    def models(self) -> list[str]:
        """The names of the models that are, or shall be, served."""
        return self._engine.manager.models()

    def status(self, model: str) -> list[VersionStatus]:
        """The versions of a model, newest first.

        Raises:
            NotFound: There is no such model.
        """
        return self._engine.manager.status(model)

    def problem(self, model: str) -> str:
        """Why a model has no versions, or is not served as the operator asked for; "" if nothing is wrong.

        Raises:
            NotFound: There is no such model.
        """
        return "; ".join(self._engine.manager.warnings(model))

    def labels(self, model: str) -> Mapping[str, int]:
        """Where the labels of a model point.

        Raises:
            NotFound: There is no such model.
        """
        return self._engine.manager.labels(model)

    def default_version(self, model: str) -> int | None:
        """The version that answers when a request names none; None while there is none."""
        return self._engine.manager.default_version(model)

    def metrics(self) -> bytes:
        """The metrics in Prometheus' text format."""
        text = exposition(self._engine, ready=self.ready(), others=self._collectors)
        return text if self.tensorflow_metrics is None else text + self.tensorflow_metrics.text().encode()

    # --- administration ---

    def reload(self, model: str) -> None:
        """Look at a model's directory anew and try what failed again.

        Raises:
            FailedPrecondition: The operator has not opened the administration.
            NotFound: There is no such model.
        """
        self._check_admin()
        self._engine.manager.reload(model)

    def unload(self, model: str) -> None:
        """Unload all versions of a model, until it is loaded again.

        Raises:
            FailedPrecondition: The operator has not opened the administration.
            NotFound: There is no such model.
        """
        self._check_admin()
        self._engine.manager.unload(model)

    def _check_admin(self) -> None:
        if not self._engine.config.admin:
            raise FailedPrecondition(
                "loading and unloading over the network is off; start the server with --admin"
            )
