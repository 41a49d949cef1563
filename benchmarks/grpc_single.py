"""gRPC, 1 row per request, 64 in flight: CPU per request beside a grpcio server's and mosec's best."""

from __future__ import annotations

from benchmarks.rounds import Effort, interleaved, loaded, middle, ratios, spread, table, verdict
from benchmarks.sides import best_of, contenders, grpcio, headrace, mosec

MOSEC_SETTINGS = ((16, 1), (32, 1), (48, 1), (64, 1), (64, 2), (64, 5))


def run(effort: Effort) -> None:
    """Measure the three in turns, mosec with its best settings (over HTTP with raw bytes: it speaks no gRPC).

    Args:
        effort: How much measuring is done.
    """
    best = best_of([mosec(batch, wait) for batch, wait in MOSEC_SETTINGS], 1)
    ours, plain = headrace("grpc"), grpcio()
    with contenders([ours, plain, best], 1) as running:
        measured = interleaved({name: loaded(one, effort) for name, one in running.items()}, effort.rounds)
    table(measured, 1)
    cpu = {name: [one.cpu_microseconds for one in rounds] for name, rounds in measured.items()}
    less = ratios(cpu[plain.name], cpu[ours.name])
    verdict(
        "gRPC, 1 row, 64 in flight, CPU per request ≤ ⅛ of grpcio's",
        middle(less) >= 8,
        f"1/{spread(less, 1)}",
    )
    share = ratios(cpu[ours.name], cpu[best.name])
    verdict(
        f"gRPC, 1 row, 64 in flight, CPU per request < {best.name}'s",
        middle(share) < 1,
        f"{spread(share)} of it",
    )
