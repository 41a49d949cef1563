"""Behind a balancer: what does one of three servers cost the callers when it freezes, dies, or stops?"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.rounds import Effort, verdict
from tests.balanced import BALANCERS, CALLERS, Cost, Load, faults, three_servers
from tests.running_server import RunningServer


def run(effort: Effort) -> None:
    """Put each balancer in front of servers of its own, and let these fail one after the other.

    Args:
        effort: How much measuring is done; the rounds of this one are the faults.
    """
    print(f"  {CALLERS} callers of each protocol, each asks again when it has its answer; one row, y = x + 1")
    failed = 0
    for name, balancer in BALANCERS.items():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            with three_servers(place) as servers:
                direct = _medians(servers["one"])
                with balancer(place, servers) as running:
                    costs = list(faults(running, servers, (10.0, 5.0, 5.0)))
        _print(name, direct, costs)
        failed += sum(len(cost.failures) for cost in costs if cost.fault == "drain")
    verdict("no request fails when a server is drained", failed == 0, f"{failed} failed")


def _medians(server: RunningServer) -> dict[str, float]:
    """What an answer takes without a balancer, from one of the servers."""
    with Load(server.http_port, server.grpc_port) as load:
        load.wait_for_calls(500)
        calls = {protocol: load.of(protocol) for protocol in ("REST", "gRPC")}
    return {protocol: statistics.median(one.seconds for one in ended) for protocol, ended in calls.items()}


def _print(name: str, direct: dict[str, float], costs: list[Cost]) -> None:
    print(f"\n  {name:<9}{'protocol':<10}{'requests':>9}{'failed':>8}{'> 0.5 s':>9}", end="")
    print(f"{'slowest':>10}{'avoided after':>15}{'usual':>10}{'beside one server alone':>25}")
    for cost in costs:
        avoided = "–" if cost.avoided_seconds is None else f"{cost.avoided_seconds:.2f} s"
        ratio = cost.usual_seconds / direct[cost.protocol]
        print(f"  {cost.fault:<9}{cost.protocol:<10}{cost.requests:>9}{len(cost.failures):>8}", end="")
        print(f"{cost.slow:>9}{cost.slowest_seconds:>8.2f} s{avoided:>15}", end="")
        print(f"{cost.usual_seconds * 1e3:>7.1f} ms{ratio:>23.2f} ×")
