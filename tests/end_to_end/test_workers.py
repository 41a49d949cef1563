"""Two workers behind one pair of ports, as their callers see them."""

from __future__ import annotations

import http.client
import json
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from headrace.archive.operations.open_archive import open_archive_file
from headrace.versions.manifest import publish
from tests.faults.isolated_models import write_hostile
from tests.faults.still_serves import grpc_calls, infer
from tests.faults.test_versions_swap_under_load import Load
from tests.faults.worker_processes import everywhere, scrape, workers_of
from tests.model_directories import affine, write
from tests.running_server import RunningServer
from tests.waiting import seconds_left

SWAPS = 4


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    write(directory, "m", 1, affine(0.0, 1.0))
    return directory


@pytest.mark.rest
@pytest.mark.exact
def test_no_request_fails_while_versions_are_swapped(models: Path) -> None:
    with RunningServer(models, "--workers", "2") as server, Load(server) as load:
        for number in range(2, 2 + SWAPS):
            content = affine(0.0, float(number), 1_000_000)
            publish(
                lambda path, content=content: (path / "model.onnx").write_bytes(content),
                models / "m",
                number,
            )
            server.wait_for(
                lambda n=number: server.get(f"/v2/models/m/versions/{n}/ready")[0] == 200, f"version {number}"
            )
            # Told by one, it is true of all: from now on no worker answers with an older one.
            for _ in range(16):
                answer = server.post("/v1/models/m:predict", {"instances": [0.0]})
                assert answer == (200, {"predictions": [float(number)]})
            with grpc_calls(server) as call:
                assert infer(call, "m", 0.0) == [float(number)]
        assert load.failed == []


@pytest.mark.rest
def test_the_model_stays_ready_while_versions_are_swapped(models: Path) -> None:
    ended = threading.Event()
    seen: set[int] = set()
    with RunningServer(models, "--workers", "2") as server:

        def watch() -> None:
            while not ended.is_set():
                seen.add(server.get("/v2/models/m/ready")[0])
                seen.add(server.get("/v2/health/ready")[0])

        watcher = threading.Thread(target=watch)
        watcher.start()
        for number in range(2, 2 + SWAPS):
            write(models, "m", number, affine(0.0, float(number)))
            server.wait_for(
                lambda n=number: server.get(f"/v2/models/m/versions/{n}/ready")[0] == 200, f"version {number}"
            )
        ended.set()
        watcher.join(120)
    assert seen == {200}


def test_metrics_are_the_sum_whichever_worker_tells_them(models: Path) -> None:
    with RunningServer(models, "--workers", "2") as server:
        for asked in range(1, 25):
            assert server.post("/v1/models/m:predict", {"instances": [0.0, 0.0]})[0] == 200
            counted = scrape(server)
            assert counted['headrace_requests_total{model="m",version="1"}'] == asked
            assert counted['headrace_model_rows_total{model="m"}'] == 2 * asked
        assert counted["headrace_workers"] == counted["headrace_workers_ready"] == 2
        assert counted["headrace_worker_restarts_total"] == 0
        assert counted["headrace_ready"] == 1
        assert counted['headrace_version_state{model="m",state="ready",version="1"}'] == 1


@pytest.mark.rest
def test_tritons_statistics_are_the_sum_whichever_worker_tells_them(models: Path) -> None:
    with RunningServer(models, "--workers", "2") as server:
        for asked in range(1, 13):
            assert server.post("/v1/models/m:predict", {"instances": [0.0, 0.0]})[0] == 200
            (told,) = json.loads(server.get("/v2/models/m/stats")[1])["model_stats"]
            assert (told["name"], told["version"]) == ("m", "1")
            assert told["inference_count"] == 2 * asked
            assert told["inference_stats"]["success"]["count"] == asked
            assert (
                sum(one["compute_infer"]["count"] for one in told["batch_stats"]) == told["execution_count"]
            )
        assert json.loads(server.get("/v2/models/stats")[1])["model_stats"][0]["inference_count"] == 24
        assert everywhere(server, "/v2/models/m/versions/7/stats") == {404}


@pytest.mark.rest
def test_a_model_is_not_ready_while_its_process_of_one_worker_is_away(models: Path) -> None:
    write_hostile(models)
    ready, predict = "/v2/models/hostile/ready", "/v1/models/hostile:predict"
    with (
        RunningServer(models, "--workers", "2", "--allow-code") as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)) as one_worker,
    ):

        def ask(value: int) -> int:
            one_worker.request("POST", predict, json.dumps({"instances": [value]}))
            response = one_worker.getresponse()
            response.read()
            return response.status

        server.wait_for(lambda: everywhere(server, ready) == {200}, "the model to be ready")
        crash, told = -1, set[int]()
        while told != {503}:  # each time the next process is waited for longer
            server.wait_for(lambda: ask(1) == 200, "a process")
            assert ask(crash) == 500
            until = time.monotonic() + 1.5
            while told != {503} and time.monotonic() < until:
                told = everywhere(server, ready)
        server.wait_for(lambda: everywhere(server, ready) == {200}, "the process to be back, which all know")


@pytest.mark.rest
def test_a_model_that_cannot_be_loaded_is_told_of_by_all(models: Path) -> None:
    write(models, "bad", 1, b"this is no model")
    with RunningServer(models, "--workers", "2") as server:
        for _ in range(12):
            status, body = server.get("/v1/models/bad")
            assert (status, b'"state":"END"' in body, b"UNKNOWN" in body) == (200, True, True)
        assert everywhere(server, "/v2/models/bad/ready") == {503}
        assert everywhere(server, "/v2/models/m/ready") == {200}


def test_an_unload_through_one_worker_reaches_all(models: Path) -> None:
    with RunningServer(models, "--workers", "2", "--admin") as server:
        first = workers_of(server)
        assert server.request("POST", "/v2/repository/models/m/unload")[0] == 200
        server.wait_for(lambda: everywhere(server, "/v2/models/m/ready") == {503}, "all to unload it")
        assert server.request("POST", "/v2/repository/models/m/load")[0] == 200
        server.wait_for(lambda: everywhere(server, "/v2/models/m/ready") == {200}, "all to load it")
        assert everywhere(server, "/v1/models/m") == {200}
        assert workers_of(server) == first


ARCHIVE = """
[spaces.items]
dimension = 3
"""


@pytest.mark.rest
def test_an_archive_is_one_to_all_workers(models: Path, tmp_path: Path) -> None:
    settings = tmp_path / "archive.toml"
    settings.write_text(ARCHIVE)
    with RunningServer(models, "--workers", "2", "--archive", str(settings)) as server:
        with closing(open_archive_file(settings)) as archive:
            archive.put("items", ["a"], np.array([[1, 2, 3]], np.float32))
        found = 0
        until = time.monotonic() + seconds_left()
        while found < 16:  # of so many new connections in a row, each worker has some
            assert time.monotonic() < until
            status, answer = server.post("/v1/archive/items:lookup", {"keys": ["a"]})
            assert status == 200
            found = found + 1 if answer["vectors"] == [[1, 2, 3]] else 0
        asked = scrape(server)['headrace_archive_lookups_total{space="items"}']
        server.post("/v1/archive/items:lookup", {"keys": ["a"]})
        assert scrape(server)['headrace_archive_lookups_total{space="items"}'] == asked + 1
        assert server.stop() == 0
