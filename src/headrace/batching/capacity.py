"""How much of what a server can answer is asked of it: the load, of which 1.0 is all it can answer in time.

Three things can run out first: the serving thread, which decodes and encodes and runs short batches itself;
the processors, which all work of the process shares; and a model's instances. The load is that of the
scarcest.

What models cost is not what they cost now: under load batches grow, and a row gets cheaper. So their part is
computed from the rate at which rows arrive and the cost of the largest batch that the objective allows.
Everything else, which batches do not make cheaper, is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.batching.cost import BatchCost

_BATCHES_IN_OBJECTIVE = 2
"""A request waits for the batch that runs when it comes, and then for its own."""


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """What is asked of one version.

    Attributes:
        rows_per_second: At which rate rows arrive, those included that are refused.
        batch_rows: The rows of a batch when there is as much to do as can be done in time.
        batch_seconds: What such a batch is predicted to take.
        instances: How many batches run side by side.
        threads: How many threads one of them uses.
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
        """How many instances are busy all the time, in batches of that size."""
        return self.rows_per_second / self.batch_rows * self.batch_seconds


@dataclass(frozen=True, slots=True)
class ServerDemand:
    """What is measured beside the models.

    Attributes:
        serving: For which share of the time the serving thread works, or waits for a processor.
        working: How many processors the process keeps busy, all its threads together.
        processors: How many it may use.
    """

    serving: float
    working: float
    processors: float


def server_load(models: Sequence[ModelDemand], server: ServerDemand) -> float:
    """The load: 1.0 is as much as the server can answer within the objectives of its models.

    Args:
        models: What is asked of each version.
        server: What is measured beside them.
    """
    serving = server.serving + sum(model.busy for model in models if model.is_inline)
    working = server.working + sum(model.busy * model.threads for model in models)
    instances = [model.busy / model.instances for model in models]
    return max(serving, working / server.processors, *instances, 0.0)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The load of a server, as it is reported to balancers.

    Attributes:
        load: As ``server_load`` has it.
        requests_per_second: The rate of requests to models, those without an answer included.
        errors_per_second: The rate of those that were refused or failed.
    """

    load: float
    requests_per_second: float
    errors_per_second: float


def report_of_workers(reports: Iterable[LoadReport | None]) -> LoadReport | None:
    """The report of a whole server: the highest load of a worker, and the sums of the rates.

    Args:
        reports: Of each worker; None for one that has none yet.

    Returns:
        The report; None where no worker has one.
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
    """What a batch costs: ``a`` seconds for the call and ``b`` for each row."""

    a: float
    b: float

    def seconds(self, rows: float) -> float:
        """The predicted cost of one batch."""
        return self.a + self.b * rows


def batch_in_time(
    now: Fit, warmed: Fit | None, usual_rows: float, max_rows: int, objective_seconds: float
) -> tuple[float, float]:
    """The largest batch that leaves its requests in time, and what it costs.

    Where all batches are of one size, what is fitted to them says nothing of larger ones. So what the warm-up
    has measured is consulted, scaled to what batches of the usual size cost now; and where there was none, no
    batch is believed to be larger than usual.

    Args:
        now: Fitted to the last batches.
        warmed: Fitted in the warm-up; None where there was none.
        usual_rows: The mean rows of the last batches.
        max_rows: The largest batch that is allowed.
        objective_seconds: The latency objective, or how long one batch may take where there is none.

    Returns:
        The rows, at least one, and the seconds.
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
    """What a cost model knows at this moment."""
    return Fit(cost.a, cost.b)
