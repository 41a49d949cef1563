"""One side of `tracing`: the whole way of a request, from ASGI's events to ASGI's events, observed or not.

For each line `WIRE COUNT` on standard input it answers so many requests, 64 at a time, waits until all that
was to be told of them has been, and prints the nanoseconds of processor time that each took, of all threads.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path

import uvloop

from benchmarks.seam_side import IN_FLIGHT, PATHS, Side
from headrace.config import AccessLog, ServerConfig, Tracing
from headrace.frontends.service import Service
from headrace.server.call_observers import Observing
from headrace.server.server import grpc_methods, http_routes
from headrace.serving.engine import Engine

WARM_UP = 32 * IN_FLIGHT
_MOST = 1_000_000  # no limit a second: what is measured is each call


async def main(models: str, bodies: str, rate: str, endpoint: str, log: str) -> None:
    """Load, warm up, say so, and do what is asked for.

    Args:
        models: The directory of models.
        bodies: Files `grpc-…` and `json-…` with a request's body each.
        rate: Which part of the calls is recorded; "" for no tracing.
        endpoint: The collector.
        log: The access log's file; "" for none.
    """
    config = ServerConfig()
    if rate:
        traced = Tracing(endpoint=endpoint, sample_rate=float(rate), max_traces_per_second=_MOST)
        config = ServerConfig(tracing=traced)
    if log:
        config = ServerConfig(tracing=config.tracing, access_log=AccessLog(path=Path(log)))
    async with Engine(models) as engine:
        observing = None
        if rate or log:
            service = Service(engine)
            observing = Observing(config, service, http_routes(service), grpc_methods(service))
        side, asked = Side(engine, Path(bodies)), 0
        for wire in PATHS:
            asked += WARM_UP
            await side.run(wire, WARM_UP)
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 1, 500)
        print("ready", flush=True)
        while line := sys.stdin.readline():  # nothing else is to go on meanwhile
            wire, requests = line.split()
            began = time.process_time_ns()
            asked += int(requests)
            await side.run(wire, int(requests))
            while observing is not None and (rate == "1" or log) and _told(observing) < asked:  # noqa: ASYNC110 - it is counted in another thread
                await asyncio.sleep(0.02)
            print((time.process_time_ns() - began) // int(requests), flush=True)


def _told(observing: Observing) -> float:
    """Of how many calls it has been said what there is to say, or nothing."""
    return sum(
        sample.value
        for family in observing.collect()
        for sample in family.samples
        if sample.labels["result"] != "over_limit"
    )


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
