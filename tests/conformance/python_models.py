"""Models in Python for the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace.base.tensors import Tensors
from headrace.runtimes.registry import RuntimeOptions
from tests.conformance.runtime_example import Example, RuntimeUnderTest

_ALLOWED = RuntimeOptions(allow_code=True)

SCALE = """
import numpy as np

from . import helper


class Model:
    inputs = [("x", "FP32", [3]), ("offset", "INT64", [])]
    outputs = [("y", "FP32", [3]), ("total", "FP64", [])]

    def load(self, path, context):
        self.factor = np.float32((path / "factor.txt").read_text())

    def predict(self, inputs):
        y = helper.scale(inputs["x"], self.factor)
        return {"y": y, "total": inputs["x"].sum(axis=1, dtype=np.float64) + inputs["offset"]}
"""

TEXT = """
class Model:
    inputs = [("text", "BYTES", [])]
    outputs = [("upper", "BYTES", []), ("length", "INT32", [])]

    def predict(self, inputs):
        texts = [text.decode() for text in inputs["text"]]
        return {"upper": [text.upper() for text in texts], "length": [len(text) for text in texts]}
"""

FIXED = """
class Model:
    inputs = [("x", "FP64", [None, 2])]
    outputs = [("y", "FP64", [None])]

    def predict(self, inputs):
        return {"y": inputs["x"].sum(axis=2)}
"""

FAILING = """
class Model:
    inputs = [("x", "FP64", [])]
    outputs = [("y", "FP64", [])]

    def predict(self, inputs):
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return {"y": inputs["x"]}
"""

LARGE = """
import numpy as np


class Model:
    inputs = [("x", "INT64", [])]
    outputs = [("y", "FP64", [])]

    def load(self, path, context):
        self.table = np.ones(250_000)

    def predict(self, inputs):
        return {"y": self.table[inputs["x"]]}
"""


def save(source: str, **files: str) -> Callable[[Path], None]:
    """Writes a version directory."""

    def write(directory: Path) -> None:
        (directory / "model.py").write_text(source)
        for name, text in files.items():
            (directory / name.replace("_", ".")).write_text(text)

    return write


def _numbers(rows: int) -> Tensors:
    x = np.arange(900, dtype=np.float32).reshape(300, 3)
    return {"x": x[:rows], "offset": np.arange(rows)}


def _texts(rows: int) -> Tensors:
    return {"text": np.array(["wasserführung"[: i % 12].encode() for i in range(rows)], dtype=object)}


PYTHON = RuntimeUnderTest(
    kind="python",
    file="model.py",
    broken=(b"", b"class Model:", b"class Model: pass", b"import nothing_of_that_name", b"1 / 0"),
    examples=(
        Example(
            "scale",
            save(SCALE, helper_py="def scale(x, factor):\n    return x * factor\n", factor_txt="2.5"),
            _numbers,
            ("x FP32 [rows, 3]", "offset INT64 [rows]", "y FP32 [rows, 3]", "total FP64 [rows]"),
            _ALLOWED,
        ),
        Example(
            "text",
            save(TEXT),
            _texts,
            ("text BYTES [rows]", "upper BYTES [rows]", "length INT32 [rows]"),
            _ALLOWED,
        ),
        Example(
            "variable",
            save(FIXED),
            lambda rows: {"x": np.linspace(0, 1, 300 * 8).reshape(300, 4, 2)[:rows]},
            ("x FP64 [rows, any, 2]", "y FP64 [rows, any]"),
            _ALLOWED,
        ),
    ),
    failing=Example("negative", save(FAILING), lambda rows: {"x": np.full(rows, -1.0)}, (), _ALLOWED),
    large=Example("large", save(LARGE), lambda rows: {"x": np.arange(rows)}, (), _ALLOWED),
    knows_options=False,
)
