"""A running archive: what a server has, with the filler in the same process where the settings ask for it."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.archive.config import ArchiveConfig, read_archive_config
from headrace.archive.embedders.embedder import Embedder
from headrace.archive.embedders.models.embedder import ModelEmbedder
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

        A store that is down keeps nothing from starting: filling begins when it answers. When the version of
        a model that makes vectors is unloaded, filling goes on with the one that took its place.

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
        self._thread: threading.Thread | None = None
        try:
            if config.fill:
                self._begin_filling(config, base)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back what is not filled, queue what waits for that, and end all threads."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self._filler is not None:
            self._filler.stop()
        for embedder in self._embedders.values():
            embedder.close()
        self.archive.close()

    def _begin_filling(self, config: ArchiveConfig, base: Path) -> None:
        self._open = partial(open_one_embedder, config, base=base, models=self._models)
        self._filled = {space: one.embedder for space, one in config.spaces.items() if one.embedder}
        for name in dict.fromkeys(self._filled.values()):
            self._embedders[name] = self._open(name)
        if self._filled:
            with suppress(Unavailable):  # it is tried again, and told then
                self._fill_from_now()
            self._thread = threading.Thread(target=self._see_to_it, name="archive-fill-look", daemon=True)
            self._thread.start()

    def _fill_from_now(self) -> None:
        filler = Filler(
            self.archive, {space: (self._embedders[name],) for space, name in self._filled.items()}
        )
        filler.start()
        self._filler = filler

    def _see_to_it(self) -> None:
        """Begin to fill once the store answers, and anew when a model's version has gone for another."""
        told = ""
        while not self._closed.wait(_AGAIN_SECONDS):
            try:
                self._renew()
                if self._filler is None:
                    self._fill_from_now()
                told = ""
            except Exception as error:  # noqa: BLE001 - the boundary of the thread: what is wrong may be put right
                if str(error) != told:
                    told = str(error)
                    _log.warning("filling has not begun: %s", told)

    def _renew(self) -> None:
        """Open embedders again whose version is not served any more: what is there now makes a new one."""
        for name, embedder in self._embedders.items():
            if isinstance(embedder, ModelEmbedder) and embedder.is_outdated:
                opened = self._open(name)
                if self._filler is not None:
                    self._filler.stop()  # which gives its batches back
                    self._filler = None
                self._embedders[name] = opened
                embedder.close()
