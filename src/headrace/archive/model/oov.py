"""The OOV vector of a space version: zeros, a vector from a file, or the mean of stored vectors."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import numpy as np

from headrace.archive.model.archive_toml import MEAN, ZEROS
from headrace.archive.model.catalog import Catalog, SpaceRecord, SpaceVersion, partition
from headrace.archive.model.columns import default_row
from headrace.archive.model.records import joined
from headrace.base.errors import ConfigError
from headrace.base.tensors import Array
from headrace.storage.stores.store import Store, pages

ENOUGH = 1000
"""Number of keys that the mean is taken over; a space with fewer has no mean yet."""


def oov_vector(setting: str, version: SpaceVersion) -> Array:
    """Return the OOV vector of a space version; for a feature table, the row of defaults.

    Args:
        setting: ``zeros``, ``mean``, or the path of a ``.npy`` file.
        version: The space version, which holds its mean.

    Returns:
        float32 ``[dimension]``; for a table, a row, uint8 ``[row bytes]``.

    Raises:
        ConfigError: The file cannot be read or does not hold one vector of this length, or the mean is
            damaged.
    """
    if version.columns:
        return default_row(version.columns)
    if setting == ZEROS or (setting == MEAN and not version.mean):
        return np.zeros(version.dimension, np.float32)
    if setting == MEAN:
        try:
            mean = np.frombuffer(base64.b64decode(version.mean), np.float32)
        except ValueError:
            mean = np.empty(0, np.float32)
        if mean.shape != (version.dimension,) or not np.isfinite(mean).all():
            raise ConfigError(f"oov: the stored mean of version {version.number} is damaged")
        return mean
    try:
        vector = np.load(Path(setting), allow_pickle=False)
    except (OSError, ValueError) as error:
        expected = "expected zeros, mean, or a .npy file"
        raise ConfigError(f"oov: {expected}; {setting} cannot be read: {error}") from error
    if not isinstance(vector, np.ndarray):
        raise ConfigError(f"oov: {setting}: expected one array, as numpy.save writes it; got several")
    if vector.shape != (version.dimension,) or vector.dtype.kind not in "fiu":
        got = f"{vector.dtype}, {list(vector.shape)}"
        raise ConfigError(f"oov: {setting}: expected {version.dimension} numbers, got {got}")
    vector = vector.astype(np.float32)
    if not np.isfinite(vector).all():
        raise ConfigError(f"oov: {setting}: expected finite numbers of float32")
    return vector


def keep_mean(store: Store, catalog: Catalog, space: str, version: SpaceVersion) -> bool:
    """Compute the mean of a space version once it has enough vectors, and store it for good.

    The mean never changes afterwards, so that models are trained with the vector that was served.

    Returns:
        Whether the mean has been stored.

    Raises:
        Unavailable: The store does not answer.
    """
    where, form = partition(space, version.number), version.form
    keys: list[bytes] = []
    for page in pages(store, where, limit=ENOUGH):
        keys += page.keys
        if len(keys) >= ENOUGH:
            break
    keys = keys[:ENOUGH]
    records = joined(store.get_many(where, keys, form.missing), form)
    there = form.are_records(records)
    if np.count_nonzero(there) < ENOUGH // 2 or len(keys) < ENOUGH:
        return False
    mean = form.decode(records[there]).astype(np.float64).mean(axis=0).astype(np.float32)
    text = base64.b64encode(mean.tobytes()).decode()

    def decide(record: SpaceRecord) -> SpaceRecord:
        versions = tuple(
            msgspec.structs.replace(one, mean=text) if one.number == version.number and not one.mean else one
            for one in record.versions
        )
        return msgspec.structs.replace(record, versions=versions)

    catalog.change(space, decide)
    return True
