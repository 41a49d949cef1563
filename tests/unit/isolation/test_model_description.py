"""The description of a model that its process returns: the parent knows the same signatures."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.isolation.model_description import describe, described
from headrace.model.servable import DEFAULT_SIGNATURE, has_files
from headrace.runtimes.registry import RuntimeOptions, load
from tests.models import Doubling

MODEL = """
class Model:
    inputs = [
        ("float", "FP32", [], float("nan")),
        ("infinite", "FP64", [2], float("-inf")),
        ("integer", "INT64", [], -(2**63) + 1),
        ("text", "BYTES", [], ""),
        ("word", "BYTES", [], "nan"),
        ("needed", "FP64", []),
    ]
    outputs = [("y", "BOOL", [])]

    def predict(self, inputs): ...
"""


def test_replacements_of_missing_values_are_described_exactly(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    servable = load(tmp_path, RuntimeOptions(allow_code=True))
    _, signatures = described(*describe(servable))
    servable.close()
    found = [one.absent for one in signatures[DEFAULT_SIGNATURE].inputs]
    assert repr(found) == "[nan, -inf, -9223372036854775807, '', 'nan', None]"


class OfAnEndpoint(Doubling):
    """A model whose directory is temporary."""

    has_files = False
    takes_packed = True


@pytest.mark.parametrize("model", [Doubling(), OfAnEndpoint()])
def test_a_description_survives_encoding_and_decoding(model: Doubling) -> None:
    found, signatures = described(*describe(model))
    assert (found.platform, found.has_files) == ("test", has_files(model))
    assert found.takes_packed == getattr(model, "takes_packed", False)
    assert signatures == model.signatures
