"""Opens an archive as its settings say: the store, the queue, and embedders when they are needed."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.archive.embedders.embedder import Embedder
from headrace.archive.embedders.open_embedders import open_embedder, read_settings
from headrace.archive.embedders.served_models import LocalModels
from headrace.archive.filling.embedder_outages import Borrowed, PooledEmbedder
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import ArchiveConfig, read_archive_config
from headrace.base.errors import Unavailable
from headrace.storage.opening import open_queue, open_store

_PATIENCE_SECONDS = 5.0


def open_archive(
    config: ArchiveConfig,
    base: Path,
    models: LocalModels | None = None,
    suppliers: Mapping[str, PooledEmbedder] | None = None,
) -> Archive:
    """Open an archive.

    An embedder is loaded only for a space without a version, for its dimension and fingerprint. A remote one
    that does not answer is called again later.

    Args:
        config: The settings.
        base: Directory that embedders' relative paths start from: that of ``archive.toml``.
        models: Models that this process serves; None if it serves none.
        suppliers: Embedders by name, shared with a filler and closed by the caller; None to open them here.

    Raises:
        ConfigError: A package is missing, an embedder cannot be opened, or the settings can never work.
        LoadError: An embedder's model cannot be loaded.
        Unavailable: A local store or queue cannot be opened now.
    """
    store = open_store(config.store)
    try:
        queue = open_queue(config.queue)
    except BaseException:
        store.close()
        raise
    known = suppliers_of(config, base, models) if suppliers is None else suppliers

    def lent(name: str) -> Embedder:
        borrowed = Borrowed(known[name].lend(_seconds_for(config, name)))
        if suppliers is None:
            known[name].put_away()
        return borrowed

    return Archive(config, store, queue, lent)


def suppliers_of(
    config: ArchiveConfig, base: Path, models: LocalModels | None = None
) -> dict[str, PooledEmbedder]:
    """Return the embedders of all spaces, by name, not yet opened.

    Args:
        config: The settings.
        base: Directory that relative paths start from.
        models: Models that this process serves; None if it serves none.
    """
    spaces: dict[str, list[str]] = {}
    for space, settings in config.spaces.items():
        if settings.embedder:
            spaces.setdefault(settings.embedder, []).append(space)
    return {
        name: PooledEmbedder(
            name,
            those,
            partial(open_one_embedder, config, name, base, models),
            address=_address(config, name),
        )
        for name, those in spaces.items()
    }


def open_suppliers(config: ArchiveConfig, suppliers: Collection[PooledEmbedder]) -> None:
    """Start opening embedders; wait for those of this process, and a few seconds for remote ones.

    One that does not answer is opened later, by later calls of ``PooledEmbedder.look``.

    Args:
        config: The settings.
        suppliers: The embedders.

    Raises:
        HeadraceError: One of them cannot be opened as the settings say, or its model does not exist.
    """
    for supplier in suppliers:
        supplier.look()
    until = time.monotonic() + _PATIENCE_SECONDS
    for supplier in suppliers:
        with suppress(Unavailable):
            seconds = _seconds_for(config, supplier.name)
            supplier.lend(seconds if seconds is None else max(0.0, until - time.monotonic()))


def _address(config: ArchiveConfig, name: str) -> str:
    return str(config.embedders.get(name, {}).get("url", ""))


def _seconds_for(config: ArchiveConfig, name: str) -> float | None:
    """Return how long to wait for an embedder to open, in seconds; None for as long as it takes."""
    return _PATIENCE_SECONDS if _address(config, name) else None


def open_archive_file(file: Path) -> Archive:
    """Open the archive that an ``archive.toml`` describes.

    Args:
        file: Path of the file.

    Raises:
        ConfigError: The file cannot be read; see also ``open_archive``.
        LoadError: As for ``open_archive``.
        Unavailable: As for ``open_archive``.
    """
    return open_archive(read_archive_config(file), file.absolute().parent)


def open_one_embedder(
    config: ArchiveConfig, name: str, base: Path, models: LocalModels | None = None
) -> Embedder:
    """Open an embedder by its name in the settings of spaces.

    Args:
        config: The settings.
        name: A table under ``[embedders]``, or a built-in embedder.
        base: Directory that relative paths start from.
        models: Models that this process serves; None if it serves none.

    Raises:
        ConfigError: There is no such embedder, a setting is wrong, or a package or file is missing.
        LoadError: Its model cannot be loaded.
    """
    read_settings(name, config.embedders.get(name), config.embedders)  # its error lists the known names
    return open_embedder(name, config.embedders.get(name), base, models=models)
