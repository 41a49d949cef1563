"""Load of a server as a share of its capacity; 1.0 is the most that it can answer in time.

Three resources can be the bottleneck: the serving thread, which decodes, encodes and runs short batches
itself; the processors, which all threads of the process share; and a model's instances. The load is that of
the bottleneck.

The current cost of a model overstates its load. As load rises, batches grow and the cost per row falls. The
model's part is therefore computed from the arrival rate of rows and the cost of the largest batch that the
objective allows. All other work does not get cheaper in batches, so it is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.batching.cost import BatchCost

_BATCHES_IN_OBJECTIVE = 2
"""A request waits for the batch that is running when it arrives, and then for its own."""


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """Demand on one version.

    Attributes:
        rows_per_second: Arrival rate of rows, including refused ones.
        batch_rows: Rows of a batch at full load.
        batch_seconds: Predicted duration of such a batch.
        instances: Number of batches that run concurrently.
        threads: Number of threads that each of them uses.
        is_inline: Whether such a batch runs in the serving thread.
    """

    rows_per_second: float
    batch_rows: float
    batch_seconds: float
    instances: int = 1
    threads: int = 1
    is_inline: bool = False

    @property
    def busy(self) -> float:
        """Average number of busy instances, with batches of that size."""
        return self.rows_per_second / self.batch_rows * self.batch_seconds


@dataclass(frozen=True, slots=True)
class ServerDemand:
    """Measured demand on a server, excluding its models.

    Attributes:
        serving: Share of time in which the serving thread works or waits for a processor.
        working: Number of processors that all threads of the process keep busy.
        processors: Number of processors that the process may use.
    """

    serving: float
    working: float
    processors: float


def server_load(models: Sequence[ModelDemand], server: ServerDemand) -> float:
    """Return the load; 1.0 is the most that the server can answer within its models' objectives.

    Args:
        models: Demand on each version.
        server: Measured demand, excluding the models.
    """
    serving = server.serving + sum(model.busy for model in models if model.is_inline)
    working = server.working + sum(model.busy * model.threads for model in models)
    instances = [model.busy / model.instances for model in models]
    return max(serving, working / server.processors, *instances, 0.0)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Load of a server, as reported to load balancers.

    Attributes:
        load: The load as returned by ``server_load``.
        requests_per_second: Rate of requests to models, including those without an answer.
        errors_per_second: Rate of requests that were refused or failed.
    """

    load: float
    requests_per_second: float
    errors_per_second: float


def report_of_workers(reports: Iterable[LoadReport | None]) -> LoadReport | None:
    """Merge the workers' reports: the highest load, and the sums of the rates.

    Args:
        reports: One report per worker; None for a worker that has none yet.

    Returns:
        The merged report; None if no worker has one.
    """
    known = [one for one in reports if one is not None]
    if not known:
        return None
    return LoadReport(
        max(one.load for one in known),
        sum(one.requests_per_second for one in known),
        sum(one.errors_per_second for one in known),
    )


@dataclass(frozen=True, slots=True)
class Fit:
    """Linear cost of a batch: ``a`` seconds per call and ``b`` seconds per row."""

    a: float
    b: float

    def seconds(self, rows: float) -> float:
        """Return the predicted duration of a batch in seconds."""
        return self.a + self.b * rows


def batch_in_time(
    now: Fit, warmed: Fit | None, usual_rows: float, max_rows: int, objective_seconds: float
) -> tuple[float, float]:
    """Return the largest batch whose requests are answered in time, and its predicted duration.

    A fit to batches that all have the same size says nothing about larger ones. The fit of the warm-up is
    therefore used as well, scaled to the current cost of batches of the usual size. Without a
    warm-up, batches are assumed to be no larger than usual if the fit shows no cost per row.

    Args:
        now: Cost fitted to the last batches.
        warmed: Cost fitted in the warm-up; None if there was none.
        usual_rows: Mean number of rows of the last batches.
        max_rows: Row limit of a batch.
        objective_seconds: Latency objective, or the longest allowed duration of a batch if there is none.

    Returns:
        The rows, at least 1, and the seconds.
    """
    usual_rows = max(1.0, usual_rows)
    if warmed is None or warmed.seconds(usual_rows) <= 0.0:
        fits, most = [now], max_rows if now.b > 0.0 else usual_rows
    else:
        scale = now.seconds(usual_rows) / warmed.seconds(usual_rows)
        fits, most = [now, Fit(warmed.a * scale, warmed.b * scale)], max_rows
    within = objective_seconds / _BATCHES_IN_OBJECTIVE
    rows = max(1.0, min([float(most), *((within - fit.a) / fit.b for fit in fits if fit.b > 0.0)]))
    return rows, max(fit.seconds(rows) for fit in fits)


def fit_of(cost: BatchCost) -> Fit:
    """Return the current fit of a cost model."""
    return Fit(cost.a, cost.b)
