"""One of several workers is killed under load: only what was in its hands is lost; another replaces it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import grpc
import pytest

from tests.faults.kept_channels import KeptChannels
from tests.faults.still_serves import does_it_still_serve
from tests.faults.strict_callers import Callers, http1
from tests.faults.worker_processes import connections_of, workers_of, workers_ready
from tests.running_server import RunningServer
from tests.waiting import seconds_left

CALLERS = 32
CHANNELS, IN_FLIGHT = 24, 2
CONNECTIONS = 600
SEPARATE = (("grpc.use_local_subchannel_pool", 1),)
SERVING = b"\x08\x01"
"""A ``HealthCheckResponse`` whose status is SERVING."""
LOST = "lost"
"""The end of the answer of a call whose connection ended."""


def test_it_costs_what_was_in_its_hands(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunningServer(models, "--workers", "2") as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
        first = workers_of(server)
        with health_checks(server) as answers, Callers(http1, server, CALLERS) as tally:
            server.wait_for(lambda: tally.answered >= 1000, "the load")
            held = connections_of(first[0], server)
            os.kill(first[0], signal.SIGKILL)
            server.wait_for(lambda: len(set(workers_of(server)) - set(first)) == 1, "another worker")
            server.wait_for(lambda: workers_ready(server) == 2, "it to serve")
            before = tally.answered
            server.wait_for(lambda: tally.answered >= before + 1000, "the load to go on")
            tally.ended.set()
        lost = [one for one in answers if one.endswith(LOST)]
        assert len(lost) <= 1, "a check that the worker had in its hands"
        assert {*answers} - {*lost} == {"REST: 200", "gRPC: SERVING"}, "the server was ready all the time"
        with capsys.disabled():
            print(f"\n[{tally}] ", end="")
        # One request at a time on a connection: at most one for each connection that it had.
        assert 0 < len(tally.lost) <= min(held, CALLERS - 1), held
        assert tally.refused == 0, "a connection was refused"
        does_it_still_serve(server)
        assert server.stop() == 0


def test_over_grpc_it_costs_the_calls_of_its_channels_and_these_go_on(models: Path) -> None:
    with RunningServer(models, "--workers", "2") as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
        first = workers_of(server)
        with KeptChannels(server, CHANNELS, IN_FLIGHT) as channels:
            channels.wait_for_answers(20)
            held = connections_of(first[0], server, server.grpc_port)
            assert 0 < held < CHANNELS, "each worker has some"
            os.kill(first[0], signal.SIGKILL)
            channels.wait_for_answers(20)  # those too that it had
            server.wait_for(lambda: len(set(workers_of(server)) - set(first)) == 1, "another worker")
            server.wait_for(lambda: workers_ready(server) == 2, "it to serve")
            channels.wait_for_answers(20)
        assert 0 < len(channels.channels_that_lost) <= held
        # Only what was sent into the connections that it had; their successors lose nothing.
        assert set(channels.times_of_loss.values()) == {1}, channels.lost
        assert all(one.said.startswith("UNAVAILABLE") for one in channels.lost), channels.lost
        does_it_still_serve(server)
        assert server.stop() == 0


@contextmanager
def health_checks(server: RunningServer) -> Iterator[list[str]]:
    """Ask for the server's health over REST and gRPC meanwhile, on new connections."""
    answers: list[str] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            try:
                answers.append(f"REST: {server.get('/v2/health/ready')[0]}")
            except (ConnectionResetError, BrokenPipeError):
                answers.append(f"REST: {LOST}")
            except OSError as error:
                answers.append(f"REST: {error!r}")
            with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", SEPARATE) as channel:
                check = channel.unary_unary("/grpc.health.v1.Health/Check")
                try:
                    said = check(b"", timeout=30, wait_for_ready=True)
                    answers.append("gRPC: SERVING" if said == SERVING else f"gRPC: {said!r}")
                except grpc.RpcError as error:
                    is_lost = error.code() is grpc.StatusCode.UNAVAILABLE
                    answers.append(f"gRPC: {LOST}" if is_lost else f"gRPC: {error!r}")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        ended.set()
        thread.join()


@pytest.mark.rest
def test_its_successor_gets_more_of_the_new_connections_until_it_has_caught_up(models: Path) -> None:
    with RunningServer(models, "--workers", "2") as server, ExitStack() as stack:
        server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
        gone, stays = workers_of(server)

        def connect(many: int) -> None:
            for _ in range(many):
                address = "127.0.0.1", server.http_port
                stack.enter_context(closing(socket.create_connection(address, timeout=30)))

        connect(CONNECTIONS)
        server.wait_for(lambda: held(server) == CONNECTIONS, "all to be accepted")
        before = connections_of(stays, server)
        assert before == pytest.approx(CONNECTIONS / 2, rel=0.2)
        os.kill(gone, signal.SIGKILL)
        server.wait_for(lambda: len(set(workers_of(server)) - {gone, stays}) == 1, "another worker")
        server.wait_for(lambda: workers_ready(server) == 2, "it to serve")
        connect(CONNECTIONS // 2)
        server.wait_for(lambda: held(server) == before + CONNECTIONS // 2, "all to be accepted")
        successor = (set(workers_of(server)) - {stays}).pop()
        share = connections_of(successor, server) / (CONNECTIONS // 2)
        assert 0.58 < share < 0.75, "twice as many as the other one"
        assert server.stop() == 0


def held(server: RunningServer) -> int:
    return sum(connections_of(one, server) for one in workers_of(server))


@pytest.mark.rest
def test_a_stop_does_not_wait_for_a_worker_that_is_about_to_be_started(models: Path) -> None:
    with RunningServer(models, "--workers", "2") as server:
        for times in range(6):  # then the next start is seconds away
            server.wait_for(lambda: len(workers_of(server)) == 2, "both")
            os.kill(workers_of(server)[-1], signal.SIGKILL)
            server.wait_for(lambda n=times: server.count_in_log("started again") == n + 1, "it to be noticed")
        assert server.stop() == 0
        assert "after_seconds=3.2" in "".join(server.errors)
        assert server.count_in_log("version is loading") < 8, "none was started for the stop"


def test_workers_that_are_killed_again_and_again_are_started_again(models: Path) -> None:
    with RunningServer(models, "--workers", "2") as server:
        for _ in range(3):
            server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
            killed = workers_of(server)[-1]
            os.kill(killed, signal.SIGKILL)
            until = time.monotonic() + seconds_left()
            while killed in workers_of(server) or len(workers_of(server)) < 2:
                assert time.monotonic() < until
                time.sleep(0.02)
            does_it_still_serve(server)
        assert server.stop() == 0
