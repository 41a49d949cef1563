"""A tree's whole way of a request, from ASGI's events to ASGI's events, told by its parent when to run.

Runs with the `PYTHONPATH` of the tree. For each line `WIRE COUNT` on standard input it answers so many
requests, 64 at a time, and prints the nanoseconds of processor time that each took, of all threads.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from headrace import Engine, application

IN_FLIGHT = 64
PATHS = {"grpc": "/inference.GRPCInferenceService/ModelInfer", "json": "/v1/models/ctr:predict"}
_TYPES = {"grpc": b"application/grpc", "json": b"application/json"}

Event = Mapping[str, Any]


class _Call:
    """One request, as ASGI's events."""

    __slots__ = ("body", "headers", "trailers")

    def __init__(self, body: Event) -> None:
        self.body = body
        self.headers: Event = {}
        self.trailers: Event = {}

    async def receive(self) -> Event:
        return self.body

    async def send(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self.headers = event
        elif event["type"] == "http.response.trailers":
            self.trailers = event

    @property
    def is_good(self) -> bool:
        """Whether it was answered with 200, or with gRPC's status 0."""
        good = self.headers["status"] == 200
        return good and ("trailers" not in self.headers or (b"grpc-status", b"0") in self.trailers["headers"])


class Side:
    """The application and the requests that it gets."""

    def __init__(self, engine: Engine, bodies: Path) -> None:
        """Read the requests."""
        self._answer: Any = application(engine).answer
        self._events = {
            wire: [
                {"type": "http.request", "body": path.read_bytes(), "more_body": False}
                for path in sorted(bodies.glob(f"{wire}-*"))
            ]
            for wire in PATHS
        }
        self._next = count()

    async def run(self, wire: str, requests: int) -> int:
        """Answer so many; the nanoseconds of processor time that each took."""
        began = time.process_time_ns()
        await asyncio.gather(*(self._caller(wire, requests // IN_FLIGHT) for _ in range(IN_FLIGHT)))
        return (time.process_time_ns() - began) // (requests // IN_FLIGHT * IN_FLIGHT)

    async def _caller(self, wire: str, requests: int) -> None:
        events, answer = self._events[wire], self._answer
        for _ in range(requests):
            body = events[next(self._next) % len(events)]
            length = b"%d" % len(body["body"])
            headers = [(b"content-type", _TYPES[wire]), (b"content-length", length)]
            scope = {
                "type": "http",
                "method": "POST",
                "path": PATHS[wire],
                "headers": headers,
                "query_string": b"",
                "client": ("127.0.0.1", 50000),
            }
            call = _Call(body)
            await answer(scope, call.receive, call.send)
        if not call.is_good:
            raise RuntimeError(f"{wire}: {call.headers} {call.trailers}")


async def main(models: str, bodies: str) -> None:
    """Load, warm up, say so, and do what is asked for.

    Args:
        models: The directory of models.
        bodies: Files `grpc-…` and `json-…` with a request's body each.
    """
    async with Engine(models) as engine:
        side = Side(engine, Path(bodies))
        for wire in PATHS:
            await side.run(wire, 2000)
        # As the server does it: see headrace.server.server.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 1, 500)
        print("ready", flush=True)
        while line := sys.stdin.readline():  # nothing else is to go on meanwhile
            wire, requests = line.split()
            print(await side.run(wire, int(requests)), flush=True)


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
