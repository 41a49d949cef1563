"""A directory of models for the endpoints of an ``app.py``: its versions, and what keeps them current."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.app_models import directory_of

APP = """
import headrace

@headrace.endpoint(name="1.py")
def first(x: float) -> float:
    return x

@headrace.endpoint
def second(x: float) -> float:
    return x
"""


def written(folder: Path, app: str = APP) -> Path:
    (folder / "app.py").write_text(app)
    return folder / "app.py"


def models_in(directory: Path) -> list[str]:
    return sorted(str(one.parent.relative_to(directory)) for one in directory.rglob("model.py"))


def test_each_endpoint_is_a_model_whatever_its_name(tmp_path: Path) -> None:
    with directory_of(written(tmp_path), reload=False) as directory:
        assert models_in(directory) == ["1.py/1", "second/1"]
    assert not directory.exists()
