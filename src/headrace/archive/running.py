"""A running archive: what a server has, with the filler in the same process where the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.archive.config import ArchiveConfig, read_archive_config
from headrace.archive.embedders.models.served import LocalModels
from headrace.archive.filling import Filler
from headrace.archive.opening import open_archive, open_suppliers, suppliers_of

Share = Callable[[ArchiveConfig], ArchiveConfig]
"""From an archive's settings to those of one process, of several that serve it together."""


class Running:
    """An archive, and what fills it.

    Attributes:
        archive: The archive.
    """

    def __init__(self, file: Path, models: LocalModels | None = None, share: Share | None = None) -> None:
        """Open what an ``archive.toml`` describes; this takes as long as loading its embedders.

        A store that is down keeps nothing from starting, nor does an embedder that is asked elsewhere: what
        it is to fill waits until it answers. When the version of a model that makes vectors is unloaded,
        filling goes on with the one that took its place.

        Args:
            file: Where that is.
            models: Those that this process serves; None where it serves none.
            share: Makes this process's part of the settings, where several share the archive.

        Raises:
            ConfigError: The settings are wrong, or something that they name cannot be opened.
            LoadError: An embedder's model cannot be loaded.
            Unavailable: A store or a queue of this machine cannot be opened now.
        """
        config, base = read_archive_config(file), file.absolute().parent
        config = config if share is None else share(config)
        self._suppliers = suppliers_of(config, base, models) if config.fill else {}
        self._filler: Filler | None = None
        try:
            open_suppliers(config, self._suppliers.values())
            self.archive = open_archive(config, base, models, self._suppliers if config.fill else None)
        except BaseException:
            self._close_suppliers()
            raise
        try:
            if self._suppliers:
                wanted = {space: one.embedder for space, one in config.spaces.items() if one.embedder}
                self._filler = Filler(
                    self.archive, {space: (self._suppliers[name],) for space, name in wanted.items()}
                )
                self._filler.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back what is not filled, queue what waits for that, and end all threads.

        An embedder that hangs is left behind, and what it was at is given back: this ends within seconds.
        """
        if self._filler is not None:
            self._filler.stop()
        self._close_suppliers()
        self.archive.close()

    def _close_suppliers(self) -> None:
        for supplier in self._suppliers.values():
            supplier.close()
