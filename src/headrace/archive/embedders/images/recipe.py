"""Where an encoder's recipe is found: beside the encoder, or in its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.base.errors import ConfigError
from headrace.config.image_recipe import Recipe
from headrace.config.toml_reader import convert, parse, read_table

FILE = "encoder.toml"
"""File name of a recipe beside its encoder."""

METADATA = "headrace.encoder"
"""Metadata key under which an ONNX file may hold the text of a recipe."""

_LATER_FIELDS = {"fit": "crop"}
"""Fields of a recipe that older releases lack, and their values there."""


def read_recipe(named: Path | None, model: Path, metadata: Mapping[str, str]) -> Recipe:
    """Read an encoder's recipe: from the file named, else from beside the encoder, else from its metadata.

    Args:
        named: File that the settings name, or None.
        model: The encoder's file or directory.
        metadata: Metadata of the encoder's file.

    Raises:
        ConfigError: There is no recipe, or it is invalid.
    """
    beside = (model if model.is_dir() else model.parent) / FILE
    if named is not None or beside.exists():
        file = named or beside
        return convert(read_table(file, f"recipe: {file}"), Recipe, f"recipe: {file}")
    if text := metadata.get(METADATA):
        where = f"the metadata {METADATA} of {model.name}"
        return convert(parse(text, where), Recipe, where)
    raise ConfigError(
        f"recipe: expected a recipe that prepares images for {model.name}, got none; write it to {beside}, "
        "as in size = [224, 224], mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225]"
    )


def described(recipe: Recipe) -> dict[str, object]:
    """Return a recipe's fields for the fingerprint of an embedder.

    A field that older releases lack is left out at their value, so that its vectors keep their fingerprint.
    """
    fields = {name: getattr(recipe, name) for name in recipe.__struct_fields__}
    return {name: value for name, value in fields.items() if _LATER_FIELDS.get(name) != value}
