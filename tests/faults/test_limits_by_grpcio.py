"""What bodies may cost holds with ``--grpc-server grpcio``: one budget of bytes, and a time to arrive in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from headrace.frontends.wire.protobuf_fields import length_prefix
from tests.faults.held import held_until
from tests.faults.still_serves import does_it_still_serve, infer_message
from tests.faults.test_client_leaves_mid_batch import counted
from tests.model_directories import write
from tests.running_server import RunningServer

INFER = "/inference.GRPCInferenceService/ModelInfer"
SERVERS = {"h2corn": (), "grpcio": ("--grpc-server", "grpcio")}
LIMIT_SECONDS = 0.5
MESSAGE_BYTES = 600_000


@pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
def test_a_message_that_never_comes_is_given_up(
    models: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text(f"[limits]\nbody_timeout_seconds = {LIMIT_SECONDS}\n", "utf-8")
    over = threading.Event()

    def silence() -> Iterator[bytes]:
        over.wait()
        return
        yield b""

    with RunningServer(models, "--config", str(settings), *options) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            try:
                with pytest.raises(grpc.RpcError) as caught:
                    channel.stream_unary(INFER)(silence())
            finally:
                over.set()
        if options:  # h2corn resets the stream by itself
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "did not arrive within 0.5 s" in caught.value.details()
        does_it_still_serve(server)


@pytest.mark.parametrize("options", SERVERS.values(), ids=SERVERS)
def test_calls_together_hold_no_more_than_their_budget(
    models: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    write(models, "slow", 1, held_until(gate := tmp_path / "gate"))
    settings = tmp_path / "server.toml"
    settings.write_text(
        # A raw message counts twice while it is answered: as it came, and for the tensors cut out of it.
        f"[limits]\nmax_message_bytes = {MESSAGE_BYTES * 2}\n"
        f"max_inflight_bytes = {MESSAGE_BYTES * 3 + 100_000}\n",
        "utf-8",
    )
    unknown = length_prefix(1000, MESSAGE_BYTES) + b"x" * MESSAGE_BYTES  # a field that nobody reads
    message = infer_message("slow", 1.0, name="seconds") + unknown

    def ask(call: grpc.UnaryUnaryMultiCallable) -> str:
        try:
            call(message, timeout=50)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return "OK"

    with RunningServer(models, "--allow-code", "--config", str(settings), *options) as server:
        with (
            grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
            ThreadPoolExecutor(4) as callers,
        ):
            call = channel.unary_unary(INFER)
            first = callers.submit(ask, call)
            server.wait_for(lambda: counted(server, "outstanding_requests") == 1, "the model to be busy")
            others = [callers.submit(ask, call) for _ in range(3)]
            server.wait_for(lambda: any(one.done() for one in others), "a refusal")
            gate.touch()
        assert first.result() == "OK"
        refused = [one.result() for one in others if one.result() != "OK"]
        assert refused
        assert all(one.startswith("UNAVAILABLE") and "max_inflight_bytes" in one for one in refused), refused
        does_it_still_serve(server)
