"""Where recipes are found, and what of them is in a fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.archive.embedders.images.recipe import METADATA, described, read_recipe
from headrace.base.errors import ConfigError
from headrace.config.image_recipe import Recipe


def test_recipes_are_found_beside_the_encoder_or_in_its_metadata(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    told = r"recipe: expected a recipe that prepares images for model.onnx, got none.*encoder.toml"
    with pytest.raises(ConfigError, match=told):
        read_recipe(None, model, {})
    assert read_recipe(None, model, {METADATA: "size = [4, 4]"}).size == (4, 4)
    (tmp_path / "encoder.toml").write_text("size = [5, 5]")
    assert read_recipe(None, model, {METADATA: "size = [4, 4]"}).size == (5, 5)
    (tmp_path / "other.toml").write_text("size = [6, 6]\nsizes = 1")
    with pytest.raises(ConfigError, match=r"other.toml: sizes: unknown setting; did you mean size\?"):
        read_recipe(tmp_path / "other.toml", model, {})


def test_recipes_of_earlier_releases_are_described_as_these_did() -> None:
    assert described(Recipe(size=(4, 4))) == {
        "size": (4, 4),
        "resize": 0,
        "filter": "bicubic",
        "white": 1.0,
        "mean": (0.0, 0.0, 0.0),
        "std": (1.0, 1.0, 1.0),
        "layout": "NCHW",
        "channels": "RGB",
    }
    assert described(Recipe(size=(4, 4), fit="stretch"))["fit"] == "stretch"
