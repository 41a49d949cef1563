"""What a key, a token and CORS cost a request: the application with and without them, in processor time.

Tokens (JWT) are measured twice: one that is remembered, and more of them than are remembered, so that the
signature of each is verified. Then the gate alone, by how a token is signed.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from benchmarks.rounds import Effort, middle, print_lines, ratios, spread, verdict
from headrace.access.caller import CallerLimits
from headrace.access.gate import Gate
from headrace.access.keys import KeyEntry, KeyFile, as_keys, draw
from headrace.access.permissions import PREDICT
from headrace.access.tokens import REMEMBERED_TOKENS, Tokens, read_token_keys
from headrace.frontends.access_control import guard
from headrace.frontends.service import Service
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.cors import Parts, shared
from headrace.frontends.transport.guarded_app import GuardedApplication
from headrace.server.server import grpc_methods, http_routes
from headrace.serving.engine import Engine
from tests.conformance.test_plain_requests import ask
from tests.models import Doubling
from tests.unit.access.tokens_of_tests import jwks, settings, token

TOGETHER = 64
DOORS = ("gRPC", "REST")
ALGORITHMS = ("RS256", "ES256", "EdDSA")
"""How tokens are signed; requests have those of the first, which most providers use."""
LIFE = timedelta(hours=1)
ORIGIN = "https://shop.example"
PLAIN = "nothing of it"

Header = tuple[bytes, bytes]


def run(effort: Effort) -> None:
    """Measure requests of one row by all sides in turns; and the gate alone."""
    gate, key = _gate()
    known = _bearer(token(ALGORITHMS[0], headrace_models=["m*"], exp=LIFE))
    # One more than are remembered: shown in turns, none is known any more when it is shown again.
    others = itertools.cycle(list(itertools.islice(_tokens(ALGORITHMS[0]), REMEMBERED_TOKENS + 1)))
    found = asyncio.run(_measured(gate, key, known, others, effort))
    lines = [("", "a request", "beside none", "more")]
    for (door, name), spent in found.items():
        without = found[door, PLAIN]
        more = "" if name == PLAIN else f"{middle(spent) - middle(without):+.1f} µs"
        share = "" if name == PLAIN else spread(ratios(spent, without))
        lines.append((f"{door}, {name}", f"{middle(spent):.1f} µs", share, more))
    print_lines(lines)
    _tell_gate(gate, key, known)


def _gate() -> tuple[Gate, Header]:
    entries, keys = [], []
    for number in range(1000):
        key = draw()
        keys.append(key)
        entries.append(
            KeyEntry(name=f"caller{number}", id=key.id, digest=key.digest, verbs=("predict",), models=("m*",))
        )
    gate = Gate(as_keys(KeyFile(key=tuple(entries))))
    with tempfile.TemporaryDirectory() as folder:
        file = jwks(Path(folder, "jwks.json"))
        gate.tokens = Tokens(settings(file), read_token_keys(file))
    return gate, _bearer(keys[500].text.encode())


def _tokens(algorithm: str) -> Iterator[Header]:
    for number in itertools.count():
        yield _bearer(token(algorithm, headrace_models=["m*"], jti=f"{algorithm} {number}", exp=LIFE))


def _bearer(text: bytes) -> Header:
    return b"authorization", b"Bearer " + text


async def _measured(
    gate: Gate, key: Header, known: Header, others: Iterator[Header], effort: Effort
) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    async with Engine.from_objects({"m": Doubling()}) as engine:
        plain, guarded = Service(engine), Service(engine)
        guard(guarded, gate)

        def behind(headers: Iterator[Header]) -> Application:
            return _asked(GuardedApplication(*_parts(engine, guarded), gate=gate), headers)

        def for_pages(header: Header | None) -> Application:
            return _asked(shared([ORIGIN], None, _parts(engine, plain)), itertools.repeat(header))

        sides = {
            PLAIN: _asked(Application(*_parts(engine, plain)), itertools.repeat(None)),
            "a key": behind(itertools.repeat(key)),
            "a token, remembered": behind(itertools.repeat(known)),
            f"a token, verified ({ALGORITHMS[0]})": behind(others),
            "CORS, no Origin": for_pages(None),
            "CORS, an Origin": for_pages((b"origin", ORIGIN.encode())),
        }
        for _ in range(effort.rounds):
            for how in DOORS:
                for name, application in sides.items():
                    spent = await _microseconds(application, how, min(1.0, effort.seconds))
                    found.setdefault((how, name), []).append(spent)
    return found


def _parts(engine: Engine, service: Service) -> Parts:
    return http_routes(service), grpc_methods(service), engine.config.limits, engine.outcomes, service.slicer


def _asked(application: Application, headers: Iterator[Header | None]) -> Application:
    """The same, whose requests are made with one more header each, or without."""
    inner = application.answer

    def with_header(scope, receive, send):  # type: ignore[no-untyped-def]  # as the application's own
        header = next(headers)
        if header is not None:
            scope["headers"].append(header)
        return inner(scope, receive, send)

    application.answer = with_header  # type: ignore[method-assign]  # the requests are made without it
    return application


async def _microseconds(application: Application, how: str, seconds: float) -> float:
    """Processor time a request, of many at once."""
    count, began, until = 0, time.process_time(), time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.gather(*(asyncio.create_task(ask(application, how, [])) for _ in range(TOGETHER)))
        count += TOGETHER
    return 1e6 * (time.process_time() - began) / count


def _tell_gate(gate: Gate, key: Header, known: Header) -> None:
    alone = _of_gate(gate, itertools.repeat(key))
    verdict("a key, known among 1,000, costs less than 3 µs at the gate", alone < 3.0, f"{alone:.2f} µs")
    print(f"a token that is remembered: {_of_gate(gate, itertools.repeat(known)):.2f} µs at the gate")
    for algorithm in ALGORITHMS:
        print(f"one that is verified, {algorithm}: {_of_gate(gate, _tokens(algorithm), 1000):.0f} µs")
    caller = gate.admit([key], PREDICT)
    caller.limits = CallerLimits(requests_per_second=1e9, concurrent_requests=10**9)
    limited = _of_gate(gate, itertools.repeat(key))
    print(f"a key with limits of calls a second and of calls under way: {limited:.2f} µs")


def _of_gate(gate: Gate, shown: Iterator[Header], times: int = 100_000) -> float:
    """Processor time of letting a call in and out, by what is shown one after the other."""
    plain = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
    calls = [[*plain, one] for one in itertools.islice(shown, times)]
    began = time.process_time()
    for headers in calls:
        gate.leave(gate.admit(headers, PREDICT))
    return 1e6 * (time.process_time() - began) / times
