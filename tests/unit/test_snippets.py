"""The Python examples of the guides to runtimes and endpoints run as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from headrace.endpoints import endpoints_of
from tests.model_directories import affine

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILES = {
    "ONNX": ("model.onnx", "model.data"),
    "scikit-learn": ("model.skops",),
    "LightGBM and XGBoost": ("model.txt",),
    "CatBoost": ("model.cbm",),
    "PyTorch": ("model.pt2",),
}
"""Sections of the guide to runtimes, and the files that their examples write."""
NEEDS = {"scikit-learn": "skops", "LightGBM and XGBoost": "lightgbm", "PyTorch": "torch"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def section(page: str, title: str) -> str:
    """Return a section of a page, without its heading."""
    text = (DOCS / page).read_text("utf-8")
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^##+ |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page} has no section {title}"
    return found[1]


def examples(page: str, title: str) -> list[str]:
    """Return the Python examples of a section."""
    found = re.findall(r"```python\n(.*?)```", section(page, title), re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize("title", FILES)
def test_each_example_of_a_runtime_writes_its_file(title: str) -> None:
    pytest.importorskip(NEEDS.get(title, title.lower()))
    for example in examples("runtimes.md", title):
        Path("small.onnx").write_bytes(affine(1.0, 1.0, 8192))
        for file in FILES[title]:
            Path(file).unlink(missing_ok=True)
        exec(example, {})
        assert {*FILES[title]} <= {file.name for file in Path().iterdir()}


@pytest.mark.rest
def test_the_example_of_litert_converts_that_of_keras() -> None:
    for needed in ("keras", "tensorflow"):
        pytest.importorskip(needed)
    for title in ("Keras", "LiteRT"):
        for example in examples("runtimes.md", title):
            exec(example, {})
    assert {"model.keras", "model.tflite"} <= {file.name for file in Path().iterdir()}


@pytest.mark.parametrize("title", ["Python", "Async predict"])
def test_each_class_of_a_model_can_be_made(title: str) -> None:
    for example in examples("runtimes.md", title):
        names: dict[str, type] = {}
        exec(example, names)
        assert names["Model"]()


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Endpoints", ["price"]),
        ("Missing values", ["premium"]),
        ("Batches", ["scores"]),
        ("State", ["Ranker"]),
        ("Async functions", ["click_rate", "Score"]),
        ("Functions that yield", ["words"]),
    ],
)
def test_each_example_of_an_endpoint_can_be_served(
    title: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "app", raising=False)
    (example,) = examples("endpoints.md", title)
    file = Path("app.py").absolute()
    file.write_text(example)
    assert [*endpoints_of(file, file)] == names
    sys.modules.pop("app", None)
