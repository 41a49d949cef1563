"""Opens an archive as its settings say: the store, the queue, and embedders when they are needed."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.archive.archive import Archive
from headrace.archive.config import ArchiveConfig, read_archive_config
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.embedders.models.served import LocalModels
from headrace.archive.embedders.opening import open_embedder, read_settings
from headrace.archive.suppliers import Borrowed, Supplier
from headrace.errors import Unavailable
from headrace.queues.opening import open_queue
from headrace.stores.opening import open_store

_PATIENCE_SECONDS = 5.0


def open_archive(
    config: ArchiveConfig,
    base: Path,
    models: LocalModels | None = None,
    suppliers: Mapping[str, Supplier] | None = None,
) -> Archive:
    """Open an archive.

    An embedder is loaded only where a space has no version yet, to ask it how long its vectors are. One that
    is asked elsewhere and does not answer is asked again later.

    Args:
        config: The settings.
        base: What relative paths of embedders start from: where ``archive.toml`` lies.
        models: Those that this process serves; None where it serves none.
        suppliers: The embedders, by name, where they are used for more than that; closed by the caller.

    Raises:
        ConfigError: A package is missing, an embedder cannot be opened, or the settings can never work.
        LoadError: An embedder's model cannot be loaded.
        Unavailable: A store or a queue of this machine cannot be opened now.
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


def suppliers_of(config: ArchiveConfig, base: Path, models: LocalModels | None = None) -> dict[str, Supplier]:
    """The embedders of all spaces, by name; none of them is opened yet.

    Args:
        config: The settings.
        base: What relative paths start from.
        models: Those that this process serves; None where it serves none.
    """
    spaces: dict[str, list[str]] = {}
    for space, settings in config.spaces.items():
        if settings.embedder:
            spaces.setdefault(settings.embedder, []).append(space)
    return {
        name: Supplier(
            name,
            those,
            partial(open_one_embedder, config, name, base, models),
            address=_address(config, name),
        )
        for name, those in spaces.items()
    }


def open_suppliers(config: ArchiveConfig, suppliers: Collection[Supplier]) -> None:
    """Begin to open embedders: those of this process are waited for, those elsewhere for some seconds.

    One that does not answer is opened later: by whoever looks after it.

    Args:
        config: The settings.
        suppliers: Which.

    Raises:
        HeadraceError: One of them cannot be opened as the settings say, or the model it asks is not there.
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
    """How long an embedder may take to open before others go on without it; None for as long as it takes."""
    return _PATIENCE_SECONDS if _address(config, name) else None


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
