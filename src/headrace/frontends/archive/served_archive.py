"""The archive in a server: opened before the server's ports, and closed after them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.archive.embedders.model_embedder import LocalModels
from headrace.archive.model.archive_toml import read_archive_config
from headrace.archive.operations.open_archive import Running, Share
from headrace.base.tensors import Tensors
from headrace.frontends.archive import grpc, rest
from headrace.frontends.archive.metrics import ArchiveMetrics, Depths
from headrace.frontends.archive.service import ArchiveService, GuardedArchiveService
from headrace.frontends.calls import GrpcMethod, HttpRoute
from headrace.serving.engine import Engine, ModelSpec

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.frontends.service import Service

_SETTLE_SECONDS = 600.0


class Serving:
    """A served archive. Serving thread only, except for ``open`` and ``close``.

    Attributes:
        archive: The archive.
    """

    def __init__(self, running: Running) -> None:
        """Serve a running archive; use ``open``."""
        self._running = running
        self.archive: Archive = running.archive
        self._depths = Depths(running.archive.queue)
        self._service: ArchiveService | None = None

    @classmethod
    async def open(cls, file: Path, engine: Engine, share: Share | None = None) -> Serving:
        """Open an archive in a thread, as loading its embedders takes long.

        If embedders are models of this server, wait until those are loaded.

        Args:
            file: Its ``archive.toml``.
            engine: The models of this process, started.
            share: This process's part of the archive; None for the whole.

        Raises:
            ConfigError: The settings are wrong, or something that they name cannot be opened.
            LoadError: An embedder's model cannot be loaded.
            Unavailable: A local store or queue cannot be opened now.
        """
        tables = read_archive_config(file).embedders.values()
        if any(table.get("kind") == "model" and not table.get("url") for table in tables):
            await engine.settle(_SETTLE_SECONDS)
        return await asyncio.to_thread(lambda: cls(Running(file, _models_of(engine), share)))

    def attach(self, service: Service, *, is_admin: bool) -> tuple[list[HttpRoute], list[GrpcMethod]]:
        """Add the archive to a server.

        Args:
            service: The server's Service; it receives the gRPC service's name and the metrics.
            is_admin: Whether clients may invalidate and forget.

        Returns:
            The routes and the methods.
        """
        kind = GuardedArchiveService if service.guarded else ArchiveService
        archive_service = self._service = kind(
            self.archive, service.limits, service.slicer, is_admin=is_admin
        )
        service.also_serves(grpc.SERVICE, ArchiveMetrics(self.archive, self._depths))
        if any(space.max_new_keys_per_second for space in self.archive.config.spaces.values()):
            service.outcomes.observe(_nobody)  # so that each call has a record with its address, for quotas
        return rest.http_routes(archive_service), grpc.grpc_methods(archive_service, service.outcomes)

    async def close(self) -> None:
        """End all threads and close the archive, after waiting for work in progress."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._service is not None:
            self._service.close()
        self._depths.close()
        self._running.close()


def _models_of(engine: Engine) -> LocalModels:
    def predict(model: str, version: int, inputs: Tensors, output: str, seconds: float) -> Tensors:
        asked = ModelSpec(model, version)
        return engine.predict_blocking(asked, inputs, outputs=(output,), timeout_seconds=seconds)

    return LocalModels(engine.manager.ready_now, predict)


def _nobody(_: object) -> None:
    """Observe nothing."""
