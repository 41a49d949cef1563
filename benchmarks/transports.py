"""The same headrace on different servers: h2corn for both protocols, grpcio and uvicorn as fallbacks."""

from __future__ import annotations

from benchmarks.rounds import Effort, interleaved, loaded, middle, ratios, spread, table, verdict
from benchmarks.sides import Side, contenders, headrace


def run(effort: Effort) -> None:
    """Measure 1-row requests, 64 in flight; codecs, batcher and model are the same on all sides.

    Args:
        effort: How much measuring is done.
    """
    _compare(
        headrace("grpc"),
        headrace("grpc", name="headrace on grpcio", options=("--grpc-server", "grpcio")),
        effort,
    )
    _compare(
        headrace("json"),
        headrace("json", name="headrace on uvicorn", options=("--http-server", "uvicorn")),
        effort,
    )


def _compare(ours: Side, fallback: Side, effort: Effort) -> None:
    with contenders([ours, fallback], 1) as running:
        measured = interleaved({name: loaded(one, effort) for name, one in running.items()}, effort.rounds)
    table(measured, 1)
    cpu = {name: [one.cpu_microseconds for one in rounds] for name, rounds in measured.items()}
    less = ratios(cpu[fallback.name], cpu[ours.name])
    verdict(
        f"h2corn costs less CPU per request than {fallback.name}", middle(less) > 1, f"1/{spread(less, 1)}"
    )
