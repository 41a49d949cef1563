"""Opens an archive as its settings say: the store, the queue, and embedders when they are needed."""

from __future__ import annotations

from pathlib import Path

from headrace.archive.archive import Archive
from headrace.archive.config import ArchiveConfig, read_archive_config
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.embedders.models.served import LocalModels
from headrace.archive.embedders.opening import open_embedder, read_settings
from headrace.queues.opening import open_queue
from headrace.stores.opening import open_store


def open_archive(config: ArchiveConfig, base: Path, models: LocalModels | None = None) -> Archive:
    """Open an archive.

    An embedder is loaded only where a space has no version yet, to ask it how long its vectors are.

    Args:
        config: The settings.
        base: What relative paths of embedders start from: where ``archive.toml`` lies.
        models: Those that this process serves; None where it serves none.

    Raises:
        ConfigError: A package is missing, an embedder cannot be opened, or the settings can never work.
        LoadError: An embedder's model cannot be loaded.
        Unavailable: A store or a queue of this machine cannot be opened now.
    """

    def embedder(name: str) -> Embedder:
        return open_one_embedder(config, name, base, models)

    store = open_store(config.store)
    try:
        queue = open_queue(config.queue)
    except BaseException:
        store.close()
        raise
    return Archive(config, store, queue, embedder)


def open_archive_file(file: Path) -> Archive:
    """Open the archive that an ``archive.toml`` describes.

    Args:
        file: Where it is.

    Raises:
        ConfigError: It cannot be read, or as ``open_archive`` does.
        LoadError: As ``open_archive``.
        Unavailable: As ``open_archive``.
    """
    return open_archive(read_archive_config(file), file.absolute().parent)


def open_one_embedder(
    config: ArchiveConfig, name: str, base: Path, models: LocalModels | None = None
) -> Embedder:
    """Open an embedder by the name that spaces call it.

    Args:
        config: The settings.
        name: A table under ``[embedders]``, or a built-in one.
        base: What relative paths start from.
        models: Those that this process serves; None where it serves none.

    Raises:
        ConfigError: There is none of that name, a setting is wrong, or a package or file is missing.
        LoadError: Its model cannot be loaded.
    """
    read_settings(name, config.embedders.get(name), config.embedders)  # says of one that is not there what is
    return open_embedder(name, config.embedders.get(name), base, models=models)
