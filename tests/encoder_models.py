"""An encoder of texts in a few lines of Python, as a version directory that ``headrace serve`` loads."""

from __future__ import annotations

from pathlib import Path

LETTERS = '''
import numpy as np
from headrace.base.errors import InvalidRequest


class Model:
    """How often each of three letters comes in a text."""

    inputs = [("text", "BYTES", [])]
    outputs = [("counts", "FP32", [3]), ("length", "INT64", [])]

    def predict(self, inputs):
        texts = inputs["text"]
        if b"wrong" in texts:
            raise InvalidRequest("a wrong text")
        if b"broken" in texts:
            raise ValueError("broken")
        counts = np.array([[text.count(letter) * SCALE for letter in (b"a", b"b", b"c")] for text in texts])
        return {"counts": counts.astype(np.float32), "length": [len(text) for text in texts]}
'''

SQUARES = '''
class Model:
    """A number with its square."""

    inputs = [("number", "INT32", [1])]
    outputs = [("embedding", "FP64", [2])]

    def predict(self, inputs):
        import numpy as np

        number = inputs["number"].astype(np.float64)
        return {"embedding": np.concatenate([number, number**2], axis=1)}
'''


def write_models(directory: Path) -> Path:
    """Write ``letters`` and ``squares``, a version each."""
    write_letters(directory, 1)
    write_version(directory, "squares", 1, SQUARES)
    return directory


def write_letters(directory: Path, version: int, scale: int = 1) -> None:
    """Write a version of ``letters``."""
    write_version(directory, "letters", version, LETTERS.replace("SCALE", str(scale)))


def write_version(directory: Path, model: str, version: int, code: str) -> None:
    """Write a version whole, as a publisher does."""
    draft = directory / f".{model}-{version}"
    draft.mkdir(parents=True)
    (draft / "model.py").write_text(code)
    (directory / model).mkdir(exist_ok=True)
    draft.rename(directory / model / str(version))
