"""Streams that are open and silent do not keep a server that is told to stop; what they owe is answered."""

from __future__ import annotations

import queue
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import grpc
import numpy as np
import pytest

from headrace.frontends.wire import protos
from tests.faults.held import held_until
from tests.faults.hostile import _frame
from tests.faults.still_serves import MODEL, infer_message
from tests.faults.test_client_leaves_mid_batch import counted
from tests.faults.test_silent_streams import INFER, STREAM, opened
from tests.model_directories import write
from tests.running_server import RunningServer

DRAIN_SECONDS = 300
"""Far longer than these tests wait for the server's end: it waits for no stream."""

END_SECONDS = 140.0
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
        for message in iter(self._requests.get, None):
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
        quiet.send(infer_message(MODEL, 1.0))
        assert quiet.answer() == [2.0]  # on the same connection: what was sent before has arrived
        server.process.send_signal(signal.SIGTERM)
        for stream in (silent, quiet):
            error = stream.end()
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "the server is stopping" in error.details()
        gate.touch()
        for _ in range(REQUESTS):
            assert owed.answer().size == 1
        assert owed.end().code() is grpc.StatusCode.UNAVAILABLE
        assert server.wait_until_ended(END_SECONDS) == 0


def test_a_client_that_ends_nothing_by_itself_keeps_a_server_no_longer_than_it_drains(models: Path) -> None:
    """Its streams are ended at once, but h2corn closes the connection only mostly soon after."""
    with (
        RunningServer(models, "--drain-seconds", "5") as server,
        opened(server.grpc_port, STREAM, 3) as connection,
        connection.makefile("rb") as reader,
    ):
        connection.sendall(_frame(PING, 0, 0, bytes(8)))
        read_frames(reader, lambda frames: frames[-1][0] == PING)  # so the streams are there
        server.process.send_signal(signal.SIGTERM)
        frames = read_frames(reader, lambda frames: len(ended(frames)) == 3)
        assert GOAWAY in {kind for kind, _, _ in frames}
        assert ended(frames) == {1, 3, 5}
        assert server.wait_until_ended(END_SECONDS) == 0


HEADERS, PING, GOAWAY, END_STREAM = 1, 6, 7, 1
Frame = tuple[int, int, int]


def ended(frames: list[Frame]) -> set[int]:
    """The streams whose last headers have come."""
    return {stream for kind, flags, stream in frames if kind == HEADERS and flags & END_STREAM}


def read_frames(reader: BinaryIO, is_all: Callable[[list[Frame]], bool]) -> list[Frame]:
    """Kind, flags, and stream of the frames that come until that is all, or the connection ends."""
    frames: list[Frame] = []
    while not (frames and is_all(frames)) and len(head := reader.read(9)) == 9:
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        reader.read(int.from_bytes(head[:3], "big"))
        frames.append((kind, flags, stream))
    return frames


@pytest.mark.rest
@pytest.mark.parametrize("options", [(), ("--grpc-server", "grpcio")], ids=["h2corn", "grpcio"])
def test_a_stream_that_goes_on_sending_keeps_no_server(models: Path, options: tuple[str, ...]) -> None:
    stopped = threading.Event()

    def messages() -> Iterator[bytes]:
        while not stopped.wait(0.005):
            yield infer_message(MODEL, 1.0)

    with (
        RunningServer(models, "--drain-seconds", str(DRAIN_SECONDS), *options) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        answers = channel.stream_stream(f"{INFER}{STREAM}")(messages(), timeout=100)
        try:
            next(answers)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError) as caught:
                for _ in answers:
                    pass
            # Who goes on sending may meet the closed connection before it has read why.
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert server.wait_until_ended(END_SECONDS) == 0
        finally:
            stopped.set()
