"""The example model: written whole, never over anything, and right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace import example
from headrace.base.errors import ConfigError, Conflict
from headrace.runtimes import registry


def test_the_example_answers_half_plus_two(tmp_path: Path) -> None:
    written = example.write(tmp_path / "models")
    servable = registry.load(written / "1", registry.RuntimeOptions())
    answer = servable.predict({"x": np.array([1.0, 2.0, 5.0], np.float32)})
    assert answer["y"].tolist() == [2.5, 3.0, 4.5]
    servable.close()


def test_nothing_but_the_model_is_left_in_the_directory(tmp_path: Path) -> None:
    written = example.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["half_plus_two"]
    assert {path.name for path in written.iterdir()} == {"1", "README.txt"}


def test_it_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "half_plus_two").mkdir()
    with pytest.raises(Conflict, match="exists already"):
        example.write(tmp_path)
    assert not any((tmp_path / "half_plus_two").iterdir())


def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        example.write(tmp_path / "file/models")


def test_the_kept_file_is_what_the_tool_makes() -> None:
    onnx = pytest.importorskip("onnx")
    from tools import make_example

    kept = onnx.load_model_from_string(make_example.TARGET.read_bytes())
    assert kept == make_example.build()
