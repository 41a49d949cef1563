"""A server's archive, with a filler in the same process if the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.archive.embedders.served_models import LocalModels
from headrace.archive.filling.filler import Filler
from headrace.archive.model.archive_toml import ArchiveConfig, read_archive_config
from headrace.archive.operations.open_archive import open_archive, open_suppliers, suppliers_of

Share = Callable[[ArchiveConfig], ArchiveConfig]
"""Maps an archive's settings to those of one process, if several serve the archive together."""


class Running:
    """An archive and its filler.

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
        """Give unfinished messages back, queue the pending keys, and end all threads.

        An embedder that hangs is abandoned and its messages are given back, so that this ends within seconds.
        """
        if self._filler is not None:
            self._filler.stop()
        self._close_suppliers()
        self.archive.close()

    def _close_suppliers(self) -> None:
        for supplier in self._suppliers.values():
            supplier.close()
