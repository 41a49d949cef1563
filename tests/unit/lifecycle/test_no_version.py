"""Why a request finds no version: texts that name the way out, and no place on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import LoadError
from headrace.lifecycle.model_records import told_of


@pytest.mark.parametrize(
    ("text", "path", "told"),
    [
        ("/srv/models/ctr/3/model.onnx: cut short", "/srv/models/ctr/3", "ctr/3/model.onnx: cut short"),
        ("models/ctr/3: nothing in it", "models/ctr/3", "ctr/3: nothing in it"),
        ("3/model.onnx: 13 bytes, expected 31", "3", "ctr/3/model.onnx: 13 bytes, expected 31"),
        ("AttributeError: the ranker is wrong", "r", "AttributeError: the ranker is wrong"),
        ("x/3/model.onnx", "3", "x/3/model.onnx"),
        ("cannot read '/etc/keys/a.pem' there", "models/ctr/3", "cannot read 'a.pem' there"),
        ("<Model at 0x7f3a10> of ~/x/y.py", "models/ctr/3", "<Model> of y.py"),
        ("ask http://host:80/v1/models/m and 1/2", "models/ctr/3", "ask http://host:80/v1/models/m and 1/2"),
    ],
)
def test_a_path_becomes_the_versions_name_and_nothing_else_does(text: str, path: str, told: str) -> None:
    assert told_of(LoadError(text), Path(path), "ctr/3") == told


def test_unexpected_errors_are_not_shown_to_clients() -> None:
    error = RuntimeError("/srv/models/secret")
    assert told_of(error, Path("m/1"), "m/1") == "an unexpected error; the server's log says more"


def test_clients_get_the_errors_text_for_callers() -> None:
    error = LoadError("model.py fails: KeyError: 'secret'", told="model.py fails")
    assert told_of(error, Path("m/1"), "m/1") == "model.py fails"
