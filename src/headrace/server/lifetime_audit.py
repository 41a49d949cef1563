"""A server's start, handover and stop, recorded in its audit log if it has one.

A log that cannot be used is an error at the start. Later failures are only logged, so that a full disk never
keeps a server from stopping.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.base.errors import HeadraceError
from headrace.config import ServerConfig

if TYPE_CHECKING:
    from headrace.telemetry.audit_log import AuditLog

_log = logging.getLogger(__name__)

_Done = TypeVar("_Done")


class ServerLife:
    """Records start, handover and stop of a server's process, or of its supervisor if it has workers."""

    def __init__(self, models: Path | None, config: ServerConfig) -> None:
        """Check that the log can be written.

        Args:
            models: The directory of models, recorded as the object of the actions.
            config: The server's settings.

        Raises:
            ConfigError: The log cannot be written.
        """
        self._on = "" if models is None else str(models.absolute())
        self._log: AuditLog | None = None
        if config.audit.file is not None:
            from headrace.telemetry.audit_log import AuditLog  # noqa: PLC0415 - only if enabled

            self._log = AuditLog(config.audit.file)

    async def record(self, action: str, act: Awaitable[_Done], otherwise: str = "") -> _Done:
        """Perform an action, and log it before and after.

        Args:
            action: Name of the action, such as ``start``.
            act: Performs the action.
            otherwise: Reason to log if ``act`` returns False.
        """
        if self._log is None:
            return await act
        by: dict[str, str | int] = {"process": "server", "uid": os.getuid()}
        name = await asyncio.to_thread(_log_begin, self._log, action, self._on, by)
        result = "done"
        try:
            done = await act
            if done is False and otherwise:
                result = f"failed: {otherwise}"
        except BaseException as error:
            from headrace.telemetry.audit_log import result_of  # noqa: PLC0415 - as above

            result = result_of(error)
            raise
        finally:
            await asyncio.to_thread(self._log.end, name, action, self._on, by, result)
        return done

    def note(self, action: str) -> None:
        """Log a completed action in a background thread, without waiting for it.

        Args:
            action: Name of the action.
        """
        if self._log is not None:
            asyncio.get_running_loop().run_in_executor(None, partial(self._log.note, action, self._on))


def _log_begin(log: AuditLog, action: str, on: str, by: dict[str, str | int]) -> str:
    try:
        return log.begin(action, on, by, is_refused=False)
    except HeadraceError as error:
        _log.error("could not write %s to the audit log: %s", action, error.message)
        return ""
