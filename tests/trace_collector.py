"""A collector of OpenTelemetry for tests: takes OTLP over gRPC and HTTP, by its own protos, and keeps it."""

from __future__ import annotations

import gzip
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.waiting import seconds_left


class Span:
    """One span that came, in Python's own types.

    Attributes:
        name: What is done.
        trace_id: 32 hexadecimal digits.
        span_id: 16 of them.
        parent_id: The same of its parent; "" without.
        kind: OTLP's number: 1 internal, 2 server.
        attributes: What is said of it.
        links: The traces and spans that it names.
        status: OTLP's number: 0 unset, 2 error; and what is said of it.
        start: In nanoseconds of Unix time.
        end: The same.
        state: ``tracestate``.
        flags: W3C's, with OTLP's own above them.
        resource: What is said of the server.
    """

    def __init__(self, span: Any, resource: Any) -> None:
        """Read it."""
        self.name: str = span.name
        self.trace_id, self.span_id = span.trace_id.hex(), span.span_id.hex()
        self.parent_id: str = span.parent_span_id.hex()
        self.kind: int = span.kind
        self.attributes = _values(span.attributes)
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.status = (span.status.code, span.status.message)
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.state, self.flags = span.trace_state, span.flags
        self.resource = _values(resource.attributes)


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


class Collector:
    """What came, and where to send it.

    Attributes:
        endpoint: Where to.
        spans: What came so far.
        requests: How many requests it came in.
        refuses: Whether it answers that it is not available.
        silent: While set it answers nothing.
        headers: Those of the last request.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.endpoint = ""
        self.spans: list[Span] = []
        self.requests = 0
        self.refuses = False
        self.silent = threading.Event()
        self.headers: dict[str, str] = {}

    def take(self, request: Any, headers: dict[str, str]) -> None:
        """Keep a request's spans."""
        self.requests += 1
        self.headers = headers
        until = time.monotonic() + seconds_left()
        while self.silent.is_set() and time.monotonic() < until:
            time.sleep(0.01)
        if not self.refuses:
            self.spans += [
                Span(span, one.resource)
                for one in request.resource_spans
                for scope in one.scope_spans
                for span in scope.spans
            ]

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Wait until something holds."""
        until = time.monotonic() + seconds_left()
        while not condition():
            assert time.monotonic() < until, [span.name for span in self.spans]
            time.sleep(0.01)

    def trees(self) -> dict[str, list[Span]]:
        """The spans by their trace."""
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            found.setdefault(span.trace_id, []).append(span)
        return found


@contextmanager
def collecting(protocol: str) -> Iterator[Collector]:
    """A collector that is there as long as this is entered.

    Args:
        protocol: ``grpc`` or ``http``.
    """
    with _by_grpc() if protocol == "grpc" else _by_http() as collector:
        yield collector


@contextmanager
def _by_grpc(port: int = 0) -> Iterator[Collector]:
    collector = Collector()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - its name in the proto
            collector.take(request, {one.key: one.value for one in context.invocation_metadata()})
            if collector.refuses:
                context.abort(grpc.StatusCode.UNAVAILABLE, "no room")
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    found = server.add_insecure_port(f"127.0.0.1:{port}")
    collector.endpoint = f"http://127.0.0.1:{found}"
    server.start()
    try:
        yield collector
    finally:
        collector.silent.clear()
        server.stop(0.5).wait()


@contextmanager
def _by_http() -> Iterator[Collector]:
    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers["content-encoding"] == "gzip":
                body = gzip.decompress(body)
            request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            is_right = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            if is_right:
                collector.take(request, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(503 if collector.refuses else 200 if is_right else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        collector.silent.clear()
        server.shutdown()
        server.server_close()
        thread.join()
