"""Streams that are open and silent do not keep a server that is told to stop; what they owe is answered."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import grpc
import numpy as np
import pytest

from headrace.frontends.wire import protos
from tests.faults.held import held_until
from tests.faults.still_serves import MODEL, infer_message
from tests.faults.test_client_leaves_mid_batch import counted
from tests.faults.test_silent_streams import INFER, STREAM, opened
from tests.model_directories import write
from tests.running_server import RunningServer

DRAIN_SECONDS = 40
REQUESTS = 200
"""More than are under way together: the others have arrived, too."""
Response = protos.message("inference.ModelStreamInferResponse")


class Stream:
    """A stream whose requests come from a queue."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.sent = 0
        call = channel.stream_stream(f"{INFER}{STREAM}")
        self.answers = call(self._messages(), timeout=100)

    def _messages(self) -> Iterator[bytes]:
        while (message := self._requests.get()) is not None:
            yield message
            self.sent += 1  # the next is asked for once this one is on its way

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self._requests.put(message)

    def answer(self) -> np.ndarray:
        response = Response.FromString(next(self.answers))
        assert not response.error_message
        datatype = {"FP32": np.float32, "INT64": np.int64}[response.infer_response.outputs[0].datatype]
        return np.frombuffer(response.infer_response.raw_output_contents[0], datatype)

    def end(self) -> grpc.RpcError:
        """What the server ended it with."""
        with pytest.raises(grpc.RpcError) as caught:
            next(self.answers)
        self._requests.put(None)
        return caught.value


@pytest.mark.parametrize("options", [(), ("--grpc-server", "grpcio")], ids=["h2corn", "grpcio"])
def test_a_server_that_stops_ends_its_streams_and_answers_what_it_owes(
    models: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    write(models, "slow", 1, held_until(gate := tmp_path / "gate"))
    settings = tmp_path / "server.toml"
    settings.write_text(f"drain_seconds = {DRAIN_SECONDS}\n", "utf-8")
    with (
        RunningServer(models, "--allow-code", "--config", str(settings), *options) as server,
        # A client that ends nothing by itself. (grpcio waits 20 s for it to answer the ping with the GOAWAY.)
        nullcontext() if options else opened(server.grpc_port, STREAM, 3),
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        silent, quiet, owed = Stream(channel), Stream(channel), Stream(channel)
        quiet.send(infer_message(MODEL, 1.0))
        assert quiet.answer() == [2.0]
        owed.send(*[infer_message("slow", 0.5, name="seconds")] * REQUESTS)
        server.wait_for(
            lambda: counted(server, "outstanding_requests") == 64, "as many as may to be under way"
        )
        server.wait_for(lambda: owed.sent == REQUESTS, "all to be on their way")
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        for stream in (silent, quiet):
            error = stream.end()
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "the server is stopping" in error.details()
        gate.touch()
        for _ in range(REQUESTS):
            assert owed.answer().size == 1
        assert owed.end().code() is grpc.StatusCode.UNAVAILABLE
        assert server.wait_until_ended(DRAIN_SECONDS) == 0
        seconds = time.monotonic() - began
        print(f"[ended in {seconds:.2f} s]", end=" ")
        assert seconds < DRAIN_SECONDS / 2


@pytest.mark.parametrize("options", [(), ("--grpc-server", "grpcio")], ids=["h2corn", "grpcio"])
def test_a_stream_that_goes_on_sending_keeps_no_server(models: Path, options: tuple[str, ...]) -> None:
    stopped = threading.Event()

    def messages() -> Iterator[bytes]:
        while not stopped.wait(0.005):
            yield infer_message(MODEL, 1.0)

    with (
        RunningServer(models, *options) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        answers = channel.stream_stream(f"{INFER}{STREAM}")(messages(), timeout=100)
        try:
            next(answers)
            server.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            with pytest.raises(grpc.RpcError) as caught:
                for _ in answers:
                    pass
            # Who goes on sending may meet the closed connection before it has read why.
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert server.wait_until_ended(DRAIN_SECONDS) == 0
            assert time.monotonic() - began < DRAIN_SECONDS / 2
        finally:
            stopped.set()
