"""Writer of whole versions of click models."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace.ctr.files.arrays import write_array
from headrace.ctr.files.description import MODEL_FILE, FileDescription, arrays_of, describe, file_name
from headrace.ctr.interfaces import Weights
from headrace.ctr.model_settings import ModelSettings
from headrace.stream.features import Features


def write_model(directory: Path, settings: ModelSettings, features: Features, weights: Weights) -> None:
    """Write a whole version into an empty directory; ``training.releasing.publishing`` makes it visible.

    Args:
        directory: The directory.
        settings: The model's settings.
        features: Layout of the model's rows.
        weights: The model's weights; tables may be quantized.

    Raises:
        ConfigError: The weights do not fit the settings and features.
        OSError: A file cannot be written.
    """
    description = describe(settings, features, weights)
    for name, array in arrays_of(weights).items():
        write_array(directory / file_name(name), array)
    write_description(directory, description)


def write_description(directory: Path, description: FileDescription) -> None:
    """Write ``model.ctr``.

    Raises:
        OSError: The file cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(description), indent=2)
    (directory / MODEL_FILE).write_bytes(text + b"\n")
