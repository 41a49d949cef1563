"""Headers of good requests under fuzzing: deadlines, ids, traces, priorities, origins, encodings, lengths."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from headrace.access.gate import Gate
from headrace.access.keys import as_keys, draw, parse_keys
from headrace.frontends.wire import protos
from tests.fuzz.front_ends import ORIGIN, FrontEnds

_PREDICT, _BODY = "/v1/models/half_plus_two:predict", b'{"instances": [1.0]}'
_V2 = "/inference.GRPCInferenceService/"
_GOOD = (
    b"content-type: application/json\ncontent-length: 20\ncontent-encoding: identity",
    b"x-request-id: a-1\nx-request-timeout-ms: 1500.5\ngrpc-timeout: 20S\nheadrace-priority: 2",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n"
    b"tracestate: a=1,b@c=2\ntracestate: d=3",
    f"origin: {ORIGIN}\naccess-control-request-method: POST\n"
    "access-control-request-headers: content-type, x-request-id".encode(),
    b"grpc-encoding: gzip\ngrpc-accept-encoding: identity,gzip\naccept-encoding: gzip, br;q=0.5\n"
    b"inference-header-content-length: 20\nuser-agent: a/1\nforwarded: for=1.2.3.4",
)  # fmt: skip


class Headers:
    """A server with a key, whose calls are recorded and traced, and to which pages of one origin talk."""

    def __init__(self) -> None:
        """Draw the key."""
        key = draw()
        entry = (
            f'[[key]]\nname = "ann"\nid = "{key.id}"\ndigest = "{key.digest}"\nverbs = ["predict"]\n'
            'models = ["*"]\npriorities = [2, 3]\nrequests_per_second = 1e9\nrows_per_second = 1e9\n'
        )
        self._front_ends = FrontEnds(Gate(as_keys(parse_keys(entry, "keys.toml"))))
        self._key = (b"x-api-key", key.text.encode())
        message = protos.message("inference.ModelInferRequest")(
            model_name="half_plus_two", raw_input_contents=[struct.pack("<f", 1.0)]
        )
        message.inputs.add(name="x", datatype="FP32", shape=[1])
        framed = struct.pack(">BI", 0, message.ByteSize()) + message.SerializeToString()
        self._calls = (
            ("POST", _PREDICT, _BODY),
            ("OPTIONS", _PREDICT, b""),
            ("GET", "/v1/models/half_plus_two", b""),
            ("POST", f"{_V2}ModelInfer", framed),
            ("POST", f"{_V2}ModelStreamInfer", framed),
        )

    def read(self, data: bytes) -> None:
        """The first byte says what is asked; the rest are headers, one on a line."""
        if not data:
            return
        method, path, body = self._calls[data[0] % len(self._calls)]
        pairs = (line.partition(b":") for line in data[1:].split(b"\n"))
        headers = [(name.lower(), value.strip(b" \t")) for name, colon, value in pairs if colon]
        self._front_ends.ask(method, path, [self._key, *headers], body)

    def seeds(self) -> Iterator[bytes]:
        """Good headers for each call."""
        for place in range(len(self._calls)):
            for good in _GOOD:
                yield bytes((place,)) + good
