"""Versions come and go, and no total that a board reads ever falls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.still_serves import does_it_still_serve
from tests.model_directories import affine, write
from tests.running_server import RunningServer

REQUEST_COUNT = ':tensorflow:serving:request_count{model_name="m",status="OK"}'
LATENCY_COUNT = ':tensorflow:serving:request_latency_count{model_name="m",API="predict",entrypoint="REST"}'
RUNTIME_COUNT = ':tensorflow:serving:runtime_latency_count{model_name="m",API="Predict",runtime="TF1"}'
OWN = [
    'headrace_model_requests_total{model="m"}',
    'headrace_model_rows_total{model="m"}',
    'headrace_model_request_seconds_count{model="m"}',
]


def scrape(server: RunningServer) -> dict[str, float]:
    status, text = server.get("/monitoring/prometheus/metrics")
    assert status == 200
    lines = [line for line in text.decode().splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.mark.exact
def test_totals_go_on_when_versions_are_unloaded(models: Path, tmp_path: Path) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text("tensorflow_metrics = true\n")
    write(models, "m", 1, affine(0.0, 1.0))
    with RunningServer(models, "--config", str(settings)) as server:
        asked = 0
        for version in range(1, 5):
            if version > 1:
                write(models, "m", version, affine(0.0, float(version)))
            server.wait_for(
                lambda version=version: (
                    server.get(f"/v2/models/m/versions/{version}/ready")[0] == 200
                    and (version == 1 or server.get(f"/v2/models/m/versions/{version - 1}/ready")[0] != 200)
                ),
                f"version {version} alone",
            )
            for _ in range(3):
                asked += 1
                answer = server.post("/v1/models/m:predict", {"instances": [0.0, 0.0]})
                assert answer == (200, {"predictions": [version, version]})
            server.wait_for(
                lambda version=version: (
                    f'headrace_requests_total{{model="m",version="{version - 1}"}}' not in scrape(server)
                ),
                "the old version's series to go",
            )
            counted = scrape(server)
            for name in (REQUEST_COUNT, LATENCY_COUNT, RUNTIME_COUNT, OWN[0], OWN[2]):
                assert counted[name] == asked, name
            assert counted[OWN[1]] == 2 * asked
        does_it_still_serve(server)
