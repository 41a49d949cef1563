"""Answers in parts from a real server: each part arrives as it is computed, and nothing is cut off."""

from __future__ import annotations

import http.client
import json
import subprocess
from pathlib import Path
from typing import Self

import pytest

from tests.running_server import RunningServer
from tests.streaming_models import GatedModel
from tests.waiting import seconds_left

PROGRAM = Path(__file__).parent.parent / "clients/triton_parts.py"
PATH = "/v2/models/words/generate_stream"


class Events:
    """The events of a request that is read line by line."""

    def __init__(self, server: RunningServer, text: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=seconds_left())
        self._connection.request("POST", PATH, json.dumps({"text": text}))
        self._response = self._connection.getresponse()
        assert self._response.status == 200
        assert self._response.headers["content-type"] == "text/event-stream; charset=utf-8"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._response.close()
        self._connection.close()

    def word(self) -> str:
        line = self._response.readline()
        assert self._response.readline() == b"\n"
        word: str = json.loads(line.removeprefix(b"data: "))["word"]
        return word

    def is_over(self) -> bool:
        return self._response.read() == b""


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("library", ["h2corn", "uvicorn"])
def test_a_part_arrives_before_the_next_one_is_computed(tmp_path: Path, library: str, kind: str) -> None:
    model = GatedModel(tmp_path, kind)
    with RunningServer(tmp_path, "--allow-code", "--http-server", library) as server:
        model.open("a", 0)
        with Events(server, "a one two three") as events:
            assert events.word() == "one"
            model.open("a", 1)
            assert events.word() == "two"
            model.open("a", 2)
            assert events.word() == "three"
            assert events.is_over()
        model.wait_until_closed(server, "a")


@pytest.mark.parametrize("library", ["h2corn", "grpcio"])
def test_tritonclient_gets_each_part_and_the_final_response(
    tmp_path: Path, library: str, clients_python: Path
) -> None:
    model = GatedModel(tmp_path)
    model.open("a", 0, 1)
    model.open("b", 0)
    with RunningServer(tmp_path, "--allow-code", "--grpc-server", library) as server:
        command = [clients_python, PROGRAM, f"127.0.0.1:{server.grpc_port}", "a one two", "b three", "c"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert [(one["id"], one["word"], one["final"]) for one in json.loads(ran.stdout)] == [
        ("0", "one", False),
        ("0", "two", False),
        ("0", None, True),
        ("1", "three", False),
        ("1", None, True),
        ("2", None, True),
    ]


def test_a_server_that_stops_completes_a_stream(tmp_path: Path) -> None:
    model = GatedModel(tmp_path)
    with RunningServer(tmp_path, "--allow-code") as server:
        model.open("a", 0)
        with Events(server, "a one two") as events:
            assert events.word() == "one"
            server.process.terminate()
            server.wait_for(lambda: server.count_in_log("draining") == 1, "the server to drain")
            model.open("a", 1)
            assert events.word() == "two"
            assert events.is_over()
        assert server.wait_until_ended() == 0


@pytest.mark.rest
def test_a_server_that_stops_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    model = GatedModel(tmp_path)
    with RunningServer(tmp_path, "--allow-code", "--drain-seconds", "2") as server:
        model.open("a", 0)
        with Events(server, "a one two") as events:
            assert events.word() == "one"
            assert server.stop() == 0
    assert (tmp_path / "words/gates/a-closed").exists()
