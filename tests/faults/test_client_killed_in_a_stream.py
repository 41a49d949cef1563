"""A client is killed in the middle of an answer in parts: the model's generator is closed, others go on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model_directories import affine, write
from tests.running_server import RunningServer
from tests.streaming_models import GatedModel

_GRPC_CLIENT = """
import sys, grpc
from headrace.frontends.wire import protos
message = protos.message("inference.ModelInferRequest")(model_name="words")
message.raw_input_contents.append(bytes.fromhex(sys.argv[2]))
message.inputs.add(name="text", datatype="BYTES", shape=[1, 1])
channel = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")
call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
for answer in call(iter([message.SerializeToString()])):
    print("got one", flush=True)
"""


def over_rest(server: RunningServer, text: str, *options: str) -> subprocess.Popen[bytes]:
    url = f"http://127.0.0.1:{server.http_port}/v2/models/words/generate_stream"
    command = ["curl", "-sN", *options, "-d", json.dumps({"text": text}), url]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def over_http2(server: RunningServer, text: str) -> subprocess.Popen[bytes]:
    return over_rest(server, text, "--http2-prior-knowledge")


def over_grpc(server: RunningServer, text: str) -> subprocess.Popen[bytes]:
    raw = len(text).to_bytes(4, "little") + text.encode()
    command = [sys.executable, "-c", _GRPC_CLIENT, str(server.grpc_port), raw.hex()]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    ("ask", "options"),
    [
        (over_http2, ()),
        (over_rest, ("--http-server", "uvicorn")),
        (over_grpc, ()),
        (over_grpc, ("--grpc-server", "grpcio")),
    ],
)
def test_a_client_that_is_killed_ends_a_stream_that_waits(
    tmp_path: Path,
    ask: Callable[[RunningServer, str], subprocess.Popen[bytes]],
    options: tuple[str, ...],
) -> None:
    model = GatedModel(tmp_path)
    write(tmp_path, "half_plus_two", 1, affine(0.5, 2.0))
    with RunningServer(tmp_path, "--allow-code", *options) as server:
        model.open("a", 0)
        client = ask(server, "a one two three")
        assert client.stdout is not None
        assert client.stdout.readline()
        client.send_signal(signal.SIGKILL)
        client.wait()
        client.stdout.close()
        model.wait_until_closed(server, "a")  # although no part follows
        counted = b'headrace_cancelled_total{model="words",version="1"} 1.0'
        server.wait_for(lambda: counted in server.get("/metrics")[1], "the stream to be counted")
        assert server.post("/v2/models/half_plus_two/generate", {"x": 3.0})[1]["y"] == 3.5


def test_over_http1_that_is_noticed_when_a_part_is_sent(tmp_path: Path) -> None:
    """A client of HTTP/1.1 may close its side only, and go on reading."""
    model = GatedModel(tmp_path)
    with RunningServer(tmp_path, "--allow-code") as server:
        model.open("a", 0)
        client = over_rest(server, "a one " + "two " * 1000)
        assert client.stdout is not None
        assert client.stdout.readline()
        client.kill()
        client.wait()
        client.stdout.close()
        model.open("a", *range(1, 20))
        model.wait_until_closed(server, "a")
