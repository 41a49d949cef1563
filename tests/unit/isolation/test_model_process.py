"""A model's process as the server sees it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import InvalidRequest
from headrace.base.tensors import Tensors
from headrace.config import IsolationPolicy, ModelConfig
from headrace.isolation import model_process as processes
from headrace.isolation.model_process import ModelProcess
from headrace.isolation.replica import Which
from headrace.isolation.servable import IsolatedServable
from headrace.runtimes.registry import RuntimeOptions


def test_a_process_of_another_release_ends_before_it_reads_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update of what is installed, under a server that runs."""
    monkeypatch.setattr(processes, "RELEASE", "0.0.9/1")
    ended = threading.Event()
    process = ModelProcess(
        {"model": "m", "version": 1}, IsolationPolicy(), 1, lambda _: ended.set(), lambda _: None
    )
    process.start()
    assert ended.wait(120)
    assert process.ending is not None
    assert process.ending.reason == "start"
    assert "the installed headrace is not the release that this server started with" in process.ending.said


CALLING = """
class Model:
    inputs = [("x", "INT64", [])]
    outputs = [("y", "INT64", [])]

    def load(self, path, context):
        self.context = context

    def predict(self, inputs):
        return {"y": self.context.predict("inner", {"z": inputs["x"]})["out"]}
"""


def test_a_call_that_ends_while_the_model_waits_leaves_nothing_to_the_next_one(tmp_path: Path) -> None:
    ends = [True]

    def call(name: str, inputs: Tensors) -> Tensors:
        if ends.pop():
            ends.append(False)
            raise asyncio.CancelledError
        ends.append(False)
        return {"out": inputs["z"] * 10}

    (tmp_path / "model.py").write_text(CALLING)
    options = RuntimeOptions(allow_code=True, call=call)
    servable = IsolatedServable(Which("m", 1, tmp_path), options, ModelConfig())
    with pytest.raises(asyncio.CancelledError):
        servable.predict({"x": np.array([1])})
    assert servable.predict({"x": np.array([2])})["y"].tolist() == [20]
    servable.close()


LISTS = """
import numpy as np

class Model:
    inputs = [("x", "INT64", [])]
    outputs = [("y", "BYTES", [])]

    def load(self, path, context):
        self.context = context

    def predict(self, inputs):
        lists = {"n": [1, 2], "some": [[0.5], [1.5]], "raw": [b"a\\0", b"b"], "text": ["ö", "x"]}
        arrays = {"texts": np.array(["ö", "x"]), "objects": np.array(["ö", b"x"], object)}
        if inputs["x"][0]:
            lists = {"ragged": [[1], [1, 2]]}
        return {"y": self.context.predict("inner", {**lists, **arrays})["out"]}
"""


def test_lists_and_texts_are_passed_on_to_another_model_as_in_process(tmp_path: Path) -> None:
    found = []

    def call(name: str, inputs: Tensors) -> Tensors:
        found.append({one: array.tolist() for one, array in inputs.items()})
        return {"out": np.array([b"done"], object)}

    (tmp_path / "model.py").write_text(LISTS)
    options = RuntimeOptions(allow_code=True, call=call)
    servable = IsolatedServable(Which("m", 1, tmp_path), options, ModelConfig())
    assert servable.predict({"x": np.array([0])})["y"].tolist() == [b"done"]
    texts = ["ö".encode(), b"x"]
    numbers = {"n": [1, 2], "some": [[0.5], [1.5]], "raw": [b"a\0", b"b"]}
    assert found == [{**numbers, "text": texts, "texts": texts, "objects": texts}]
    with pytest.raises(InvalidRequest, match=r"ragged: expected .*, got a list that is ragged"):
        servable.predict({"x": np.array([1])})
    servable.close()
