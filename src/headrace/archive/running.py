"""A running archive: what a server has, with the filler in the same process where the settings ask for it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from headrace.archive.config import ArchiveConfig, read_archive_config
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.embedders.models.served import LocalModels
from headrace.archive.filling import Filler
from headrace.archive.opening import open_archive, open_one_embedder
from headrace.errors import Unavailable

_log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0


class Running:
    """An archive, and what fills it.

    Attributes:
        archive: The archive.
    """

    def __init__(self, file: Path, models: LocalModels | None = None) -> None:
        """Open what an ``archive.toml`` describes; this takes as long as loading its embedders.

        A store that is down keeps nothing from starting: filling begins when it answers.

        Args:
            file: Where that is.
            models: Those that this process serves; None where it serves none.

        Raises:
            ConfigError: The settings are wrong, or something that they name cannot be opened.
            LoadError: An embedder's model cannot be loaded.
            Unavailable: A store or a queue of this machine cannot be opened now.
        """
        config, base = read_archive_config(file), file.absolute().parent
        self.archive = open_archive(config, base, models)
        self._models = models
        self._embedders: dict[str, Embedder] = {}
        self._filler: Filler | None = None
        self._closed = threading.Event()
        self._starting: threading.Thread | None = None
        try:
            if config.fill:
                self._begin_filling(config, base)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back what is not filled, queue what waits for that, and end all threads."""
        self._closed.set()
        if self._starting is not None:
            self._starting.join()
        if self._filler is not None:
            self._filler.stop()
        for embedder in self._embedders.values():
            embedder.close()
        self.archive.close()

    def _begin_filling(self, config: ArchiveConfig, base: Path) -> None:
        filled = {space: one.embedder for space, one in config.spaces.items() if one.embedder}
        for name in dict.fromkeys(filled.values()):
            self._embedders[name] = open_one_embedder(config, name, base, self._models)
        by_space = {space: (self._embedders[name],) for space, name in filled.items()}
        if by_space and not self._filled_from_now(by_space):
            self._starting = threading.Thread(
                target=self._fill_when_it_can, args=(by_space,), name="archive-fill-start", daemon=True
            )
            self._starting.start()

    def _filled_from_now(self, by_space: dict[str, tuple[Embedder]]) -> bool:
        try:
            self._filler = Filler(self.archive, by_space)
        except Unavailable as error:
            _log.warning("filling has not begun: %s", error.message)
            return False
        self._filler.start()
        return True

    def _fill_when_it_can(self, by_space: dict[str, tuple[Embedder]]) -> None:
        while not self._closed.wait(_AGAIN_SECONDS):
            try:
                if self._filled_from_now(by_space):
                    return
            except Exception:  # noqa: BLE001 - the boundary of the thread: what is wrong may be put right
                _log.exception("filling cannot begin")
