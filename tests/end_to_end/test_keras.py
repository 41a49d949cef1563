"""A Keras model of the user's: generated clicks stream in, versions appear, a server answers from them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.versions.layout import version_directories
from tests.running_server import RunningServer

BUILD = """
import keras
from headrace.training.keras import Embedded, LazyAdam, inputs_of


def build(schema):
    inputs = inputs_of(schema)
    parts = [
        Embedded(schema.by_name[name], 8)(one) if schema.by_name[name].role == "categorical" else one
        for name, one in inputs.items()
    ]
    layer = keras.layers.Dense(16, activation="relu")(keras.layers.Concatenate()(parts))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(layer))
    model.compile(optimizer=LazyAdam(0.01))
    return model
"""


def headrace(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def last_line(ran: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.rest
def test_clicks_become_versions_that_a_server_answers_from(tmp_path: Path) -> None:
    (tmp_path / "clicks.py").write_text(BUILD)
    rows = tmp_path / "rows.arrows"
    generated = headrace(
        "stream", "generate", "--rows", "30000", "--seed", "1", "--shape", "small", "--out", rows
    )
    assert generated.returncode == 0, generated.stderr
    train = ["train", rows, "--model", "keras", "--keras", f"{tmp_path / 'clicks.py'}:build"]
    train += ["--batch-rows", "128", "--publish", tmp_path / "models/clicks", "--every-rows", "16000"]
    train += ["--keep", "2", "--checkpoint", tmp_path / "saved", "--rows"]

    first = last_line(headrace(*train, "20000"))
    said = last_line(headrace(*train, "30000", "--resume"))

    assert said["rows"] == 30000
    assert float(str(said["logloss"])) < 0.5  # saying the click rate each time answers 0.5016
    assert len(list(first["versions"])) < len(list(said["versions"]))  # type: ignore[call-overload]
    kept = sorted(version_directories(tmp_path / "models/clicks"))
    assert kept == said["versions"][-2:]  # type: ignore[index]
    with RunningServer(tmp_path / "models") as server:
        row = {"c1": 9, "c2": 1, "c3": 2, "c4": 22, "c5": 2, "c6": 5, "d1": [1.0], "d2": [0.0]}
        status, body = server.post("/v1/models/clicks:predict", {"instances": [row, row]})
        assert status == 200, body
        one, other = list(body["predictions"])  # type: ignore[call-overload]
        assert one == other
        assert 0 < one < 1
