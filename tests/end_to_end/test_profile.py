"""``headrace profile`` as people run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.onnx_models import network, save


def headrace(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's directory, whose second version is larger."""
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        save(network(), tmp_path / str(number))
    return tmp_path


def test_the_newest_version_becomes_a_table_and_a_trace(model: Path) -> None:
    ran = headrace("profile", model, "--rows", "16", "--calls", "3", "--trace", model / "trace.json")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("serving (onnx): ")
    assert "MatMul" in ran.stdout
    assert "perfetto" in ran.stderr
    events = json.loads((model / "trace.json").read_text())["traceEvents"]
    assert sum(event["cat"] == "MatMul" for event in events if event["ph"] == "X") == 3


def test_json_is_for_programs(model: Path) -> None:
    ran = headrace("profile", model / "1", "--calls", "3", "--json")
    said = json.loads(ran.stdout)
    (profile,) = said["profiles"]
    assert said["model"] == str(model / "1")
    assert (profile["runtime"], profile["rows"], profile["calls"]) == ("onnx", 32, 3)
    assert sum(one["share"] for one in profile["operations"]) == pytest.approx(1)


def test_recorded_requests_are_used(model: Path) -> None:
    (model / "warm_up.jsonl").write_text("not a request\n")
    ran = headrace("profile", model)
    assert ran.returncode == 1
    assert "line 1 of warm_up.jsonl" in ran.stderr


def test_recorded_keys_of_an_archive_are_not_taken_for_the_models_own_inputs(model: Path) -> None:
    (model / "warm_up.jsonl").write_text('{"inputs": {"url": ["a"]}}\n')
    (model / "headrace.toml").write_text('[inputs.x]\nspace = "images"\nkey = "url"\n')
    ran = headrace("profile", model, "--calls", "3")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-directory"], 2, "is not a directory"),
        (["MODEL", "--training"], 2, "does not train onnx models"),
        (["MODEL", "--keras", "model.py:build"], 2, "add --training"),
        (["MODEL", "--rows", "0"], 2, "rows: expected a whole number, 1 or more, got 0"),
        (["MODEL", "--trace", "no-such-directory/trace.json"], 2, "cannot be written"),
    ],
)
def test_wrong_usage_is_explained(model: Path, words: list[str], code: int, said: str) -> None:
    ran = headrace("profile", *(model if word == "MODEL" else word for word in words), "--calls", "1")
    assert ran.returncode == code
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_model_of_code_has_no_profile(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    ran = headrace("profile", tmp_path)
    assert ran.returncode == 2
    assert "a python model is not a graph of operations" in ran.stderr
