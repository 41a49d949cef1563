"""A model crashes in native code, in the server's process: the log says where, and workers are replaced."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.kept_channels import KeptChannels
from tests.faults.neighbours import Connection
from tests.faults.still_serves import does_it_still_serve, http_request
from tests.faults.strict_callers import Callers, http1
from tests.faults.worker_processes import connections_of, workers_of, workers_ready
from tests.model_directories import write
from tests.running_server import RunningServer

CRASHES = """
import ctypes

class Model:
    inputs = [("x", "FP32", [])]
    outputs = [("y", "FP32", [])]

    def predict(self, inputs):
        if (inputs["x"] < 0).any():
            ctypes.string_at(0)
        return {"y": inputs["x"]}
"""
CALLERS, CHANNELS, IN_FLIGHT = 16, 24, 2
CRASHING = http_request("/v1/models/crashes:predict", b'{"instances": [-1]}')


def test_a_worker_is_replaced_and_the_others_go_on(models: Path) -> None:
    write(models, "crashes", 1, CRASHES)
    with RunningServer(models, "--allow-code", "--workers", "2") as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
        before = workers_of(server)
        with closing(Connection(server.http_port)) as caller:
            assert caller.send(CRASHING) == 0
        does_it_still_serve(server)
        server.wait_for(
            lambda: len(set(workers_of(server)) - set(before)) == 1 and workers_ready(server) == 2, "another"
        )
        for said in ("Segmentation fault", "SIGSEGV"):  # of faulthandler, and of the supervisor
            server.wait_for(lambda said=said: server.count_in_log(said) > 0, said)
        does_it_still_serve(server)
        assert server.stop() == 0


@pytest.mark.rest
def test_callers_beside_lose_what_was_in_the_hands_of_the_worker_that_crashed(models: Path) -> None:
    write(models, "crashes", 1, CRASHES)
    with RunningServer(models, "--allow-code", "--workers", "2") as server:
        server.wait_for(lambda: workers_ready(server) == 2, "both to serve")
        before = workers_of(server)
        with (
            Callers(http1, server, CALLERS) as tally,
            KeptChannels(server, CHANNELS, IN_FLIGHT) as channels,
        ):
            server.wait_for(lambda: tally.answered >= 20 * CALLERS, "the load")
            held = {one: connections_of(one, server) for one in before}
            held_grpc = {one: connections_of(one, server, server.grpc_port) for one in before}
            assert min(held_grpc.values()) > 0, "each worker has some"
            with closing(Connection(server.http_port)) as caller:
                assert caller.send(CRASHING) == 0
            server.wait_for(lambda: len(set(before) - set(workers_of(server))) == 1, "its end to be noticed")
            (crashed,) = set(before) - set(workers_of(server))
            answered = tally.answered
            channels.wait_for_answers(20)  # those too that it had
            server.wait_for(lambda: tally.answered >= answered + 20 * CALLERS, "the load to go on")
            tally.ended.set()
        assert len(tally.lost) <= held[crashed], tally.lost
        assert tally.refused == 0, "a connection was refused"
        assert 0 < len(channels.channels_that_lost) <= held_grpc[crashed]
        assert set(channels.times_of_loss.values()) == {1}, channels.lost
        assert server.stop() == 0


def test_a_process_of_its_own_ends_and_the_log_says_where(models: Path) -> None:
    write(models, "crashes", 1, CRASHES)
    with RunningServer(models, "--allow-code") as server:
        with closing(Connection(server.http_port)) as caller:
            assert caller.send(CRASHING) == 0
        assert server.wait_until_ended() == -signal.SIGSEGV
    assert server.count_in_log("Segmentation fault") > 0
    assert server.count_in_log("in predict") > 0
