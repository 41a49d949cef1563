"""``headrace export`` writes what ONNX Runtime answers from."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from headrace.cli.main import main
from tests.conformance.ctr_models import write


def test_a_version_becomes_an_onnx_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "1").mkdir()
    write(tmp_path / "1", "deepffm")
    file = tmp_path / "model.onnx"
    assert main(["export", str(tmp_path), str(file)]) == 0
    assert main(["export", str(tmp_path / "1"), str(file)]) == 0
    assert "deepffm" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_outputs()] == ["probability"]


def test_export_explains_a_missing_model_and_an_unwritable_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path), str(tmp_path / "model.onnx")]) == 2
    assert "holds no click model (model.ctr)" in capsys.readouterr().err
    (tmp_path / "1").mkdir()
    write(tmp_path / "1", "lr")
    assert main(["export", str(tmp_path / "1"), str(tmp_path / "none" / "model.onnx")]) == 1
    assert "cannot be written" in capsys.readouterr().err
