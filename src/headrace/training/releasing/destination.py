"""Check of a publication directory: it must not hold another model's versions, or several models.

A server loads the newest version in a directory, whatever its model. So the check runs before anything is
learnt.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.base.errors import ConfigError, LoadError, listed
from headrace.base.files import saying
from headrace.ctr.files.description import MODEL_FILE
from headrace.ctr.files.model_files import read_description
from headrace.stream.schema import Field, Schema
from headrace.versions.layout import model_directories, version_directories
from headrace.versions.manifest import read_manifest

SCHEMA_KEY = "schema"
"""Manifest key of the rows' schema, for models whose own files do not contain it."""

_SAVED_MODEL = "saved_model.pb"
_MOST_NAMED = 5


def check_destination(directory: Path, schema: Schema, *, is_keras: bool, is_replaced: bool) -> None:
    """Check that a directory is one model's, and that its newest readable version is of the model to publish.

    Args:
        directory: The model's directory; it need not exist.
        schema: Schema of the rows that the run learns from.
        is_keras: Whether the run publishes SavedModels; otherwise click models.
        is_replaced: Whether the versions may follow those of another model.

    Raises:
        ConfigError: The directory holds models' directories, or its newest readable version is of another
            model.
        FailedPrecondition: The directory cannot be listed.
    """
    with saying(f"no version can be published in {directory}"):
        if not directory.is_dir():
            return
        versions = version_directories(directory)
        models = model_directories(directory)
    if models:
        raise ConfigError(
            f"publish: {directory} holds the directories of models ({listed(models, _MOST_NAMED)}), but "
            f"versions belong in the directory of one model; name it, such as --publish {directory / 'NAME'}"
        )
    if is_replaced:
        return
    for number, path in reversed(versions.items()):
        why = _why_another(path, schema, is_keras)
        if why is not None:
            if why:
                raise ConfigError(
                    f"publish: version {number} in {directory} is of another model: {why}. A server would "
                    "serve the new one in its place; publish into another directory, or set --replace"
                )
            return


def _why_another(version: Path, schema: Schema, is_keras: bool) -> str | None:
    """Return why a version is of another model; "" if not, None if empty, damaged or of a newer format."""
    wanted = _SAVED_MODEL if is_keras else MODEL_FILE
    with saying(f"{version} cannot be read"):
        names = sorted(path.name for path in version.iterdir())
    if not names:
        return None
    if wanted not in names:
        kind = "Keras model" if is_keras else "click model"
        return f"it is not a {kind}, but holds {listed(names, _MOST_NAMED)}"
    try:
        there = _schema_of(version) if is_keras else read_description(version).schema
    except LoadError:  # damaged or of a newer format: earlier versions decide
        return None
    if there is None:
        return "it does not contain the schema of its rows"
    return _difference(there, schema)


def _schema_of(version: Path) -> Schema | None:
    manifest = read_manifest(version)
    said = manifest.metadata.get(SCHEMA_KEY) if manifest is not None else None
    try:
        return None if said is None else msgspec.convert(said, Schema)
    except (msgspec.ValidationError, ConfigError):
        return None


def _difference(there: Schema, new: Schema) -> str:
    """Describe how the inputs of requests differ, or return ""; the layout of tables does not count."""
    before, after = _inputs(there), _inputs(new)
    gone, more = before.keys() - after.keys(), after.keys() - before.keys()
    others = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    said = (("it has", gone), ("it does not have", more), ("it takes other values for", others))
    return ", ".join(f"{words} {listed(sorted(names), _MOST_NAMED)}" for words, names in said if names)


def _inputs(schema: Schema) -> dict[str, object]:
    return {one.name: _asked(one) for one in schema.of("categorical", "dense", "vector")}


def _asked(field: Field) -> object:
    """Return the properties of a field that determine its input in requests."""
    if field.role == "categorical":
        return field.role, field.keys == "bucket", field.text, field.values, field.context
    return field.role, field.size if field.role == "vector" else 1, field.context
