"""Opens an archive as its settings say: the store, the queue, and embedders when they are needed.

A server's archive may have a filler in the same process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.archive.embedders.embedder import MINILM, Embedder, ImageSettings, ModelSettings, TextSettings
from headrace.archive.embedders.image_embedder import open_image
from headrace.archive.embedders.model_embedder import LocalModels, open_model
from headrace.archive.embedders.text_embedder import open_text
from headrace.archive.filling.pooled_embedder import Borrowed, PooledEmbedder
from headrace.archive.lookup.archive import Archive
from headrace.archive.model.archive_toml import ArchiveConfig, read_archive_config
from headrace.base.errors import ConfigError, LoadError, Unavailable, nearest
from headrace.config.toml_reader import convert
from headrace.net.deadline_connection import Resolve, system_addresses
from headrace.storage.opening import open_queue, open_store

if TYPE_CHECKING:
    from headrace.archive.filling.filler import Filler

_PATIENCE_SECONDS = 5.0

AnySettings = TextSettings | ImageSettings | ModelSettings
_KINDS: dict[str, type[AnySettings]] = {"text": TextSettings, "image": ImageSettings, "model": ModelSettings}
_BUILT_IN: dict[str, AnySettings] = {MINILM: TextSettings()}


def open_archive(
    config: ArchiveConfig,
    base: Path,
    models: LocalModels | None = None,
    pooled: Mapping[str, PooledEmbedder] | None = None,
) -> Archive:
    """Open an archive.

    An embedder is loaded only for a space without a version, for its dimension and fingerprint. A remote one
    that does not answer is called again later.

    Args:
        config: The settings.
        base: Directory that embedders' relative paths start from: that of ``archive.toml``.
        models: Models that this process serves; None if it serves none.
        pooled: Embedders by name, shared with a filler and closed by the caller; None to open them here.

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
    known = pooled_embedders_of(config, base, models) if pooled is None else pooled

    def lent(name: str) -> Embedder:
        borrowed = Borrowed(known[name].lend(_seconds_for(config, name)))
        if pooled is None:
            known[name].close_idle()
        return borrowed

    return Archive(config, store, queue, lent)


def pooled_embedders_of(
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


def open_pooled_embedders(config: ArchiveConfig, pooled: Collection[PooledEmbedder]) -> None:
    """Start opening embedders; wait for those of this process, and a few seconds for remote ones.

    One that does not answer is opened later, by later calls of ``PooledEmbedder.look``.

    Args:
        config: The settings.
        pooled: The embedders.

    Raises:
        HeadraceError: One of them cannot be opened as the settings say, or its model does not exist.
    """
    for one in pooled:
        one.look()
    until = time.monotonic() + _PATIENCE_SECONDS
    for one in pooled:
        with suppress(Unavailable):
            seconds = _seconds_for(config, one.name)
            one.lend(seconds if seconds is None else max(0.0, until - time.monotonic()))


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
    embedder_settings(name, config.embedders.get(name), config.embedders)  # its error lists the known names
    return open_embedder(name, config.embedders.get(name), base, models=models)


Share = Callable[[ArchiveConfig], ArchiveConfig]
"""Maps an archive's settings to those of one process, if several serve the archive together."""


class Running:
    """A server's archive, with a filler in the same process if the settings ask for it.

    Attributes:
        archive: The archive.
    """

    def __init__(self, file: Path, models: LocalModels | None = None, share: Share | None = None) -> None:
        """Open the archive that an ``archive.toml`` describes; this takes as long as loading its embedders.

        A remote store or embedder that is down does not prevent the start: its keys wait until it answers.
        When the version of a model that serves as an embedder is unloaded, filling continues with the version
        that replaced it.

        Args:
            file: Path of the file.
            models: Models that this process serves; None if it serves none.
            share: Returns this process's part of the settings, if several processes share the archive.

        Raises:
            ConfigError: The settings are wrong, or something that they name cannot be opened.
            LoadError: An embedder's model cannot be loaded.
            Unavailable: A local store or queue cannot be opened now.
        """
        config, base = read_archive_config(file), file.absolute().parent
        config = config if share is None else share(config)
        self._pooled = pooled_embedders_of(config, base, models) if config.fill else {}
        self._filler: Filler | None = None
        try:
            open_pooled_embedders(config, self._pooled.values())
            self.archive = open_archive(config, base, models, self._pooled if config.fill else None)
        except BaseException:
            self._close_pooled()
            raise
        try:
            if self._pooled:
                from headrace.archive.filling.filler import Filler  # noqa: PLC0415 - for servers that fill

                wanted = {space: one.embedder for space, one in config.spaces.items() if one.embedder}
                self._filler = Filler(
                    self.archive, {space: (self._pooled[name],) for space, name in wanted.items()}
                )
                self._filler.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give unfinished messages back, queue the pending keys, and end all threads.

        An embedder that hangs is abandoned and its messages are given back, so that this ends within seconds.
        """
        if self._filler is not None:
            self._filler.stop()
        self._close_pooled()
        self.archive.close()

    def _close_pooled(self) -> None:
        for pooled in self._pooled.values():
            pooled.close()


# ---- Embedders ----


def embedder_settings(
    name: str, table: Mapping[str, object] | None, others: Collection[str] = ()
) -> AnySettings:
    """Convert an embedder's table to settings.

    Args:
        name: Name of the embedder in the space's settings.
        table: The table of that name under ``[embedders]``; None if there is none, for built-in embedders.
        others: Names of the tables under ``[embedders]``.

    Raises:
        ConfigError: There is no embedder of that name, its kind is unknown, or a setting is wrong.
    """
    if table is None:
        if name not in _BUILT_IN:
            expected = f"{' or '.join(_BUILT_IN)}, or a table [embedders.{name}]"
            meant = nearest(name, [*_BUILT_IN, *others])
            hint = f"; did you mean {meant}?" if meant else ""
            raise ConfigError(f"embedder: expected {expected}; got {name!r}{hint}")
        return _BUILT_IN[name]
    where, kind = f"embedders.{name}", table.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError(f"{where}.kind: expected one of {', '.join(map(repr, _KINDS))}, got {kind!r}")
    return convert(table, _KINDS[kind], where)


def open_embedder(
    name: str,
    table: Mapping[str, object] | None,
    base: Path,
    *,
    models: LocalModels | None = None,
    resolve: Resolve = system_addresses,
) -> Embedder:
    """Open an embedder: load its encoder, or call the served model once. It blocks until that is done.

    Args:
        name: Name of the embedder in the space's settings.
        table: See ``embedder_settings``.
        base: Directory that relative paths start from: that of ``archive.toml``.
        models: Models that this process serves; None if it serves none.
        resolve: Function that resolves host names for downloads.

    Raises:
        ConfigError: There is no embedder of that name, a setting is wrong, or a package or file is missing.
        LoadError: The model cannot be loaded.
        Refused: The remote server is not available now.
        HeadraceError: The remote or local server does not serve the model.
    """
    settings = embedder_settings(name, table)
    try:
        if isinstance(settings, TextSettings):
            return open_text(settings, base)
        if isinstance(settings, ImageSettings):
            return open_image(settings, base, resolve)
        return open_model(settings, base, models)
    except (ConfigError, LoadError) as error:
        raise type(error)(f"embedders.{name}: {error.message}") from error
