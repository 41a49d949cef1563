"""The front ends under fuzzing: real models and an archive, behind the application that serves them.

What is asked goes through the transport's own reading (framing, compression, limits) to the codecs, the
engine and the models. An answer that says "internal error", and anything logged as unexpected, is a finding.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.access.gate import Gate
from headrace.config import Limits, ServerConfig
from headrace.frontends.access_control import guard
from headrace.frontends.archive.served_archive import Serving
from headrace.frontends.calls import GrpcMethod, HttpRoute
from headrace.frontends.service import Service
from headrace.frontends.transport.asgi import Application
from headrace.frontends.transport.cors import shared
from headrace.frontends.wire import protos
from headrace.server.server import grpc_methods, http_routes
from headrace.serving.engine import Engine
from headrace.telemetry.access_log import line
from headrace.telemetry.outcomes import Outcome
from headrace.telemetry.tracing.spans import Describer, Routes
from headrace.telemetry.tracing.tracer import ParentBased
from tests.conformance.ctr_models import write as write_click_model
from tests.model_directories import write_menagerie

LIMITS = Limits(max_message_bytes=2**20, max_inflight_bytes=2**24, max_values=2**14, max_expanded_bytes=2**22)
SECONDS = 20.0
"""How long one answer may take before it is a finding of its own."""

ORIGIN = "https://shop.example"
"""The origin whose pages may ask a server with keys."""

_MODELS = ("half_plus_two", "pair", "words", "flowers", "price", "clicks")
_ENDLESS = "/grpc.health.v1.Health/Watch"
_GZIP, _BINARY, _IN_PIECES, _DAMAGED_GZIP = 1, 2, 4, 8
_MOST_TRACES = 1_000_000_000
_NOT_IN_HEADERS = re.compile(rb"[\r\n\0]")


class Unexpected(Exception):
    """What no client may cause."""


class _Findings(logging.Handler):
    """Keeps what was logged as unexpected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.error: BaseException | str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.error = record.exc_info[1] if record.exc_info else record.getMessage()


class FrontEnds:
    """Both protocols over one engine with an archive, in a loop that runs for one request at a time.

    Attributes:
        rest_calls: All methods and paths of REST, for each of the models.
        grpc_paths: All methods of gRPC but the one that does not end.
    """

    def __init__(self, gate: Gate | None = None) -> None:
        """Load the models.

        Args:
            gate: What callers pass, if they need keys. Then calls are also recorded and traced, and pages of
                ``ORIGIN`` may ask.
        """
        self._place = tempfile.TemporaryDirectory()
        place = Path(self._place.name)
        (place / "models").mkdir()
        write_menagerie(place / "models")
        (place / "models/clicks/1").mkdir(parents=True)
        write_click_model(place / "models/clicks/1", "fm")
        (place / "archive.toml").write_text(
            '[store]\nkind = "memory"\n[queue]\nkind = "memory"\n[spaces.items]\ndimension = 3\n'
        )
        self._found = _Findings()
        logging.getLogger("headrace").addHandler(self._found)
        self._loop = asyncio.new_event_loop()
        self._application = self._loop.run_until_complete(self._start(place, gate))

    async def _start(self, place: Path, gate: Gate | None) -> Application:
        config = ServerConfig(limits=LIMITS, archive=place / "archive.toml", allow_code=True, poll_seconds=0)
        engine = Engine(place / "models", config=config)
        await engine.start()
        serving = await Serving.open(place / "archive.toml", engine)
        service = Service(engine)
        if gate is not None:
            guard(service, gate)
        routes, methods = serving.attach(service, is_admin=True)
        routes += http_routes(service)
        methods += grpc_methods(service)
        self.rest_calls = sorted({call for route in routes for call in _calls(route)})
        self.grpc_paths = sorted(method.path for method in methods if method.path != _ENDLESS)
        parts = routes, methods, LIMITS, engine.outcomes, service.slicer
        if gate is None:
            return Application(*parts)
        _observe(service, routes, methods)
        return shared((ORIGIN,), gate, parts)

    def rest(self, data: bytes) -> None:
        """One REST request: two bytes say where to and how, two where its JSON ends, the rest is the body."""
        if len(data) < 4:
            return
        (method, path), how, head = self.rest_calls[data[0] % len(self.rest_calls)], data[1], data[2:4]
        body = data[4:]
        headers = [(b"content-type", b"application/json")]
        if how & _BINARY:
            (length,) = struct.unpack("<H", head)
            headers.append((b"inference-header-content-length", b"%d" % length))
        self.ask(method, path, headers, *_packed(body, how, headers, b"content-encoding"))

    def grpc(self, data: bytes) -> None:
        """One gRPC call: two bytes say which and how; the rest is one message, or a stream's bytes."""
        if len(data) < 2:
            return
        path, how, body = self.grpc_paths[data[0] % len(self.grpc_paths)], data[1], data[2:]
        headers = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
        if not how & _BINARY:  # else the frames are in the data, too
            packed = how & _GZIP
            body = gzip.compress(body, 1) if packed else body
            if packed and how & _DAMAGED_GZIP:
                body = body[:-4]
            body = struct.pack(">BI", bool(packed), len(body)) + body
        headers.append((b"grpc-encoding", b"gzip"))
        self.ask("POST", path, headers, *_pieces(body, how))

    def ask(self, method: str, path: str, headers: list[tuple[bytes, bytes]], *pieces: bytes) -> None:
        self._found.error = None
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "root_path": "", "client": ("127.0.0.1", 1), "http_version": "2",
        }  # fmt: skip
        said = self._loop.run_until_complete(asyncio.wait_for(self._run(scope, pieces), SECONDS))
        if self._found.error is not None:
            error = self._found.error
            raise Unexpected(f"{path}: {error}") from (error if isinstance(error, BaseException) else None)
        if b"internal error" in said:
            raise Unexpected(f"{path}: {said[:200]!r}")

    async def _run(self, scope: dict[str, Any], pieces: tuple[bytes, ...]) -> bytes:
        said, events = bytearray(), _events(pieces)

        async def receive() -> dict[str, object]:
            return next(events, {"type": "http.disconnect"})

        async def send(event: Any) -> None:
            said.extend(event.get("body", b""))
            for name, value in event.get("headers", ()):
                said.extend(value)
                if _NOT_IN_HEADERS.search(name + value):
                    self._found.error = f"a header that begins another one: {name!r}: {value!r}"

        await self._application(scope, receive, send)
        return bytes(said)


def _observe(service: Service, routes: list[HttpRoute], methods: list[GrpcMethod]) -> None:
    """Make a line of the access log and a span of each call, at once instead of in a thread."""
    describer = Describer(Routes(route.pattern for route in routes), (method.path for method in methods))

    def log(outcome: Outcome) -> None:
        if line(outcome, 0.0).count(b"\n") != 1:
            raise Unexpected("one line that became several")

    def trace(outcome: Outcome) -> None:
        if outcome.trace is not None:
            describer.call(outcome, outcome.trace)

    service.outcomes.observe(log, names=True)
    service.outcomes.observe_sampled(trace, ParentBased(1.0, _MOST_TRACES))


def _calls(route: HttpRoute) -> Iterator[tuple[str, str]]:
    """A route's method and paths, for each model where one is named."""
    for model in _MODELS if "{model}" in route.pattern else ("",):
        path = route.pattern.replace("{model}", model).replace("{version}", "1").replace("{space}", "items")
        yield route.method, re.sub(r"\{\w+\}", "x", path)


def _packed(body: bytes, how: int, headers: list[tuple[bytes, bytes]], encoding: bytes) -> tuple[bytes, ...]:
    if how & _GZIP:
        body = gzip.compress(body, 1)
        if how & _DAMAGED_GZIP:
            body = body[: len(body) // 2]
        headers.append((encoding, b"gzip"))
    headers.append((b"content-length", b"%d" % len(body)))
    return _pieces(body, how)


def _pieces(body: bytes, how: int) -> tuple[bytes, ...]:
    third = len(body) // 3
    return (body[:third], body[third:]) if how & _IN_PIECES else (body,)


def _events(pieces: tuple[bytes, ...]) -> Iterator[dict[str, object]]:
    for number, piece in enumerate(pieces, 1):
        yield {"type": "http.request", "body": piece, "more_body": number < len(pieces)}


# --- what it begins with ---


def rest_seeds(front_ends: FrontEnds) -> Iterator[bytes]:
    """Good requests of each kind, as ``FrontEnds.rest`` takes them."""
    infer = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}], "id": "a"}
    bodies: dict[str, object] = {
        "/v1/models/half_plus_two:predict": {"instances": [1.0, 2.5]},
        "/v1/models/pair:predict": {"inputs": {"a": [1.0], "b": [2.0]}},
        "/v1/models/words:predict": {"instances": ["a", {"b64": "AA=="}]},
        "/v1/models/flowers:classify": {
            "examples": [{"x": 1.0}], "context": {"y": "b"}, "signature_name": "serving_default",
        },
        "/v1/models/price:regress": {"examples": [{"x": 1.0}]},
        "/v1/models/clicks:predict": {"instances": [{"age": 3, "ad": 5}]},
        "/v2/models/half_plus_two/infer": infer,
        "/v2/models/pair/infer": {
            "inputs": [{"name": name, "datatype": "FP32", "shape": [1], "data": [1]} for name in "ab"]
        },
        "/v2/models/words/infer": {
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]
        },
        "/v2/repository/index": {"ready": True},
        "/v2/repository/models/pair/load": {"parameters": {"config": "{}"}},
        "/v1/archive/items:lookup": {"keys": ["a", "b"]},
        "/v1/archive/items:put": {"keys": ["a"], "vectors": [[1.0, 2.0, 3.0]]},
        "/v1/archive/items:invalidate": {"keys": ["a"]},
        "/v1/archive/items:forget": {"keys": ["a"]},
    }  # fmt: skip
    places = {call: place for place, call in enumerate(front_ends.rest_calls)}
    for place in places.values():
        yield bytes((place, 0, 0, 0)) + b"{}"
    for path, body in bodies.items():
        for how in (0, _GZIP, _IN_PIECES):
            yield bytes((places["POST", path], how, 0, 0)) + json.dumps(body).encode()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    where = places["POST", "/v2/models/half_plus_two/infer"]
    yield bytes((where, _BINARY)) + struct.pack("<H", len(head)) + head + struct.pack("<f", 1.5)


def grpc_seeds(front_ends: FrontEnds) -> Iterator[bytes]:
    """Good messages of each kind, as ``FrontEnds.grpc`` takes them."""
    infer = protos.message("inference.ModelInferRequest")(model_name="half_plus_two")
    infer.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    raw = protos.message("inference.ModelInferRequest")(
        model_name="half_plus_two", raw_input_contents=[struct.pack("<f", 1.0)]
    )
    raw.inputs.add(name="x", datatype="FP32", shape=[1])
    predict = protos.message("tensorflow.serving.PredictRequest")()
    predict.model_spec.name = "half_plus_two"
    predict.inputs["x"].dtype = 1
    predict.inputs["x"].tensor_shape.dim.add(size=1)
    predict.inputs["x"].float_val.append(1.0)
    lookup = protos.message("headrace.archive.v1.LookupRequest")(space="items")
    v2, archive = "/inference.GRPCInferenceService/", "/headrace.archive.v1.Archive/"
    messages = {
        "/tensorflow.serving.PredictionService/Predict": (predict,),
        f"{v2}ModelInfer": (infer, raw),
        f"{v2}ModelStreamInfer": (infer,),
        **{f"{archive}{name}": (lookup,) for name in ("Lookup", "LookupStream", "Invalidate", "Forget")},
    }
    places = {path: place for place, path in enumerate(front_ends.grpc_paths)}
    for path, some in messages.items():
        for one in some:
            for how in (0, _GZIP, _IN_PIECES):
                yield bytes((places[path], how)) + one.SerializeToString()
    for place in places.values():
        yield bytes((place, 0, 10, 4, 10, 2, 97, 98))
