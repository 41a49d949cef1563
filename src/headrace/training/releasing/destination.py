"""Whether a directory is one to publish a model into: not that of another model, nor one of models.

A server takes the newest version of a directory, whatever it is. So what a run would put in its place is
looked at before anything is learnt.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.ctr.files.description import MODEL_FILE
from headrace.ctr.files.reading import read_description
from headrace.disk import saying
from headrace.errors import ConfigError, LoadError, listed
from headrace.stream.schema import Field, Schema
from headrace.versions.layout import model_directories, version_directories
from headrace.versions.manifest import read_manifest

SCHEMA_KEY = "schema"
"""Under which the manifest of a model that cannot say it itself keeps the schema of its rows."""

_SAVED_MODEL = "saved_model.pb"
_MOST_NAMED = 5


def check_destination(directory: Path, schema: Schema, *, is_keras: bool, is_replaced: bool) -> None:
    """Check that what lies in a directory is earlier versions of the model that a run publishes.

    Args:
        directory: The model's directory; it need not exist.
        schema: The rows that the run learns from.
        is_keras: Whether it publishes SavedModels; click models otherwise.
        is_replaced: Whether the operator wants another model's versions followed by this one's.

    Raises:
        ConfigError: It holds models' directories, or its newest version is another model.
        FailedPrecondition: It cannot be listed.
    """
    with saying(f"no version can be published in {directory}"):
        if not directory.is_dir():
            return
        versions = version_directories(directory)
        models = model_directories(directory)
    if models:
        raise ConfigError(
            f"publish: {directory} holds the directories of models ({listed(models, _MOST_NAMED)}), and "
            f"versions lie in a model's own; name that, such as --publish {directory / 'NAME'}"
        )
    if is_replaced:
        return
    for number, path in reversed(versions.items()):
        why = _why_another(path, schema, is_keras)
        if why is not None:
            if why:
                raise ConfigError(
                    f"publish: version {number} in {directory} is of another model: {why}. A server would "
                    "answer by the new one in its place; publish into another directory, or say --replace"
                )
            return


def _why_another(version: Path, schema: Schema, is_keras: bool) -> str | None:
    """Why a version is another model; "" if it is not, None if it cannot be told from this version."""
    wanted = _SAVED_MODEL if is_keras else MODEL_FILE
    with saying(f"{version} cannot be read"):
        names = sorted(path.name for path in version.iterdir())
    if not names:
        return None
    if wanted not in names:
        kind = "Keras model" if is_keras else "click model"
        return f"it is no {kind}, but holds {listed(names, _MOST_NAMED)}"
    try:
        there = _schema_of(version) if is_keras else read_description(version).schema
    except LoadError:  # damaged: the versions before it tell
        return None
    if there is None:
        return "nothing in it says which rows it is for"
    return _difference(there, schema)


def _schema_of(version: Path) -> Schema | None:
    manifest = read_manifest(version)
    said = manifest.metadata.get(SCHEMA_KEY) if manifest is not None else None
    try:
        return None if said is None else msgspec.convert(said, Schema)
    except (msgspec.ValidationError, ConfigError):
        return None


def _difference(there: Schema, new: Schema) -> str:
    """How the inputs that requests give differ; "" if they do not. What a table is made of is no input."""
    before, after = _inputs(there), _inputs(new)
    gone, more = before.keys() - after.keys(), after.keys() - before.keys()
    others = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    said = (("it has", gone), ("it does not have", more), ("it takes other values for", others))
    return ", ".join(f"{words} {listed(sorted(names), _MOST_NAMED)}" for words, names in said if names)


def _inputs(schema: Schema) -> dict[str, object]:
    return {one.name: _asked(one) for one in schema.of("categorical", "dense", "vector")}


def _asked(field: Field) -> object:
    """What a request gives for a field."""
    if field.role == "categorical":
        return field.role, field.keys == "bucket", field.text, field.values, field.context
    return field.role, field.size if field.role == "vector" else 1, field.context
