"""grpc.health.v1 and server reflection, asked with grpcio's own stubs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.running_server import RunningServer

PROGRAM = Path(__file__).parent.parent / "clients/health_and_reflection.py"


def test_health_and_services_are_told_to_grpcs_own_clients(
    server: RunningServer, clients_python: Path
) -> None:
    command = [clients_python, PROGRAM, f"127.0.0.1:{server.grpc_port}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    answers = json.loads(ran.stdout)
    assert answers["health"] == {
        "check": {
            "": "SERVING",
            "inference.GRPCInferenceService": "SERVING",
            "tensorflow.serving.PredictionService": "SERVING",
            "tensorflow.serving.ModelService": "SERVING",
            "no.such.Service": "NOT_FOUND",
        },
        "watch": "SERVING",
    }
    services = answers["reflection"]["services"]
    assert "Predict" in services["tensorflow.serving.PredictionService"]
    assert "ModelInfer" in services["inference.GRPCInferenceService"]
    assert answers["reflection"]["request"][:2] == ["model_name", "model_version"]
