"""Why a request finds no version: texts that name the way out, and no place on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.lifecycle.no_version import without_path


@pytest.mark.parametrize(
    ("text", "path", "told"),
    [
        ("/srv/models/ctr/3/model.onnx: cut short", "/srv/models/ctr/3", "ctr/3/model.onnx: cut short"),
        ("models/ctr/3: nothing in it", "models/ctr/3", "ctr/3: nothing in it"),
        ("3/model.onnx: 13 bytes, expected 31", "3", "ctr/3/model.onnx: 13 bytes, expected 31"),
        ("AttributeError: the ranker is wrong", "r", "AttributeError: the ranker is wrong"),
        ("x/3/model.onnx", "3", "x/3/model.onnx"),
    ],
)
def test_a_path_becomes_the_versions_name_and_nothing_else_does(text: str, path: str, told: str) -> None:
    assert without_path(text, Path(path), "ctr/3") == told
