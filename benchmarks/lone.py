"""gRPC, 1 row per request, 1 in flight: what a lone caller waits, beside a plain grpcio server."""

from __future__ import annotations

from benchmarks.rounds import Effort, interleaved, loaded, middle, ratios, spread, table, verdict
from benchmarks.sides import contenders, grpcio, headrace


def run(effort: Effort) -> None:
    """Measure both in turns; headrace has the settings that it has in every other benchmark.

    Args:
        effort: How much measuring is done.
    """
    ours, plain = headrace("grpc"), grpcio()
    with contenders([ours, plain], 1) as running:
        measured = interleaved({name: loaded(one, effort, 1) for name, one in running.items()}, effort.rounds)
    table(measured, 1)
    for label in ("p50", "mean"):
        waits = {
            name: [getattr(one, f"{label}_milliseconds") for one in rounds]
            for name, rounds in measured.items()
        }
        share = ratios(waits[ours.name], waits[plain.name])
        verdict(
            f"gRPC, 1 row, 1 in flight, {label} latency < grpcio's",
            middle(share) < 1,
            f"{spread(share)} of it",
        )
