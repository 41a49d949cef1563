"""REST with JSON, 1 row per request, 64 in flight: CPU per request beside FastAPI's on uvicorn."""

from __future__ import annotations

from benchmarks.rounds import Effort, interleaved, loaded, middle, ratios, spread, table, verdict
from benchmarks.sides import contenders, fastapi, headrace


def run(effort: Effort) -> None:
    """Measure the same bodies on headrace and on both kinds of FastAPI handler; the cheaper one counts.

    Args:
        effort: How much measuring is done.
    """
    ours, peers = headrace("json"), [fastapi("sync"), fastapi("async")]
    with contenders([ours, *peers], 1) as running:
        measured = interleaved({name: loaded(one, effort) for name, one in running.items()}, effort.rounds)
    table(measured, 1)
    cpu = {name: [one.cpu_microseconds for one in rounds] for name, rounds in measured.items()}
    for peer in sorted(peers, key=lambda side: middle(cpu[side.name])):
        less = ratios(cpu[peer.name], cpu[ours.name])
        verdict(
            f"REST, 1 row, CPU per request ≤ 1/7 of {peer.name}'s", middle(less) >= 7, f"1/{spread(less, 1)}"
        )
