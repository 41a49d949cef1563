"""gRPC channels at a server with two workers: each worker has some, and an age deals them out anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.kept_channels import KeptChannels
from tests.faults.still_serves import MODEL
from tests.faults.worker_processes import callers_of, workers_of, workers_ready
from tests.model_directories import affine, write
from tests.running_server import RunningServer

CHANNELS = 48
LEAST = CHANNELS // 6
"""What each worker has at the least: a third of its even part."""
AGE = ("--max-connection-age-seconds", "2", "--drain-lead-seconds", "0.2")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    write(directory, MODEL, 1, affine(1.0, 1.0))
    return directory


def connections(server: RunningServer) -> list[set[str]]:
    """The gRPC connections of each worker, by their callers' ports."""
    return [callers_of(worker, server.grpc_port) for worker in workers_of(server)]


def test_each_worker_has_a_part_of_them(models: Path) -> None:
    with RunningServer(models, "--workers", "2") as server, KeptChannels(server, CHANNELS, 1) as channels:
        found = connections(server)
        assert sum(map(len, found)) == CHANNELS
        assert len(found) == 2
        assert min(map(len, found)) >= LEAST, found
        channels.wait_for_answers(3)
        assert connections(server) == found, "a channel stays where it is"
    assert channels.lost == []


@pytest.mark.rest
@pytest.mark.exact
def test_with_an_age_they_are_dealt_out_again_and_again_and_no_call_is_lost(models: Path) -> None:
    with RunningServer(models, "--workers", "2", *AGE) as server:
        with KeptChannels(server, CHANNELS, 1) as channels:
            for _ in range(2):
                before = set[str]().union(*connections(server))
                server.wait_for(
                    lambda before=before: not before & set[str]().union(*connections(server)),
                    "all connections to be other ones",
                )
                channels.wait_for_answers(3)
                server.wait_for(
                    lambda: min(map(len, connections(server))) >= LEAST, "each worker to have its part"
                )
        assert channels.lost == []


@pytest.mark.rest
def test_with_an_age_a_worker_that_was_started_again_gets_its_part_of_kept_channels(models: Path) -> None:
    with RunningServer(models, "--workers", "2", *AGE) as server:
        with KeptChannels(server, CHANNELS, 1) as channels:
            first = workers_of(server)
            os.kill(first[0], signal.SIGKILL)
            channels.wait_for_answers(1)
            server.wait_for(lambda: len(set(workers_of(server)) - set(first)) == 1, "another worker")
            server.wait_for(lambda: workers_ready(server) == 2, "it to serve")
            lost = len(channels.lost)
            server.wait_for(
                lambda: min(map(len, connections(server))) >= LEAST, "each worker to have its part"
            )
            channels.wait_for_answers(3)
        assert len(channels.lost) == lost, "no call is lost for the age"
