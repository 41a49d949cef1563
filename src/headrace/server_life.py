"""A server's own start, handover and end, told in its audit log where it has one.

None of these waits for the log to be written: a full disk must not keep a server from starting or stopping.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.config import ServerConfig
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.audit import AuditLog

_log = logging.getLogger(__name__)

_Done = TypeVar("_Done")


class ServerLife:
    """Tells of one server: of its process, or of its supervisor process where it has workers."""

    def __init__(self, models: Path | None, config: ServerConfig) -> None:
        """Look whether the log can be written.

        Args:
            models: The directory of models, which is what lines are about.
            config: The server's settings.

        Raises:
            ConfigError: It cannot.
        """
        self._on = "" if models is None else str(models.absolute())
        self._log: AuditLog | None = None
        if config.audit.file is not None:
            from headrace.audit import AuditLog  # noqa: PLC0415 - only where it is wanted

            self._log = AuditLog(config.audit.file)

    async def told(self, action: str, act: Awaitable[_Done], otherwise: str = "") -> _Done:
        """Do something, told before and after it.

        Args:
            action: Which, such as ``start``.
            act: What does it.
            otherwise: How it has ended where it returns False.
        """
        if self._log is None:
            return await act
        by: dict[str, str | int] = {"process": "server", "uid": os.getuid()}
        name = await asyncio.to_thread(_asked, self._log, action, self._on, by)
        result = "done"
        try:
            done = await act
            if done is False and otherwise:
                result = f"failed: {otherwise}"
        except BaseException as error:
            from headrace.audit import result_of  # noqa: PLC0415 - as above

            result = result_of(error)
            raise
        finally:
            await asyncio.to_thread(self._log.end, name, action, self._on, by, result)
        return done

    def note(self, action: str) -> None:
        """Tell of something that has been done, behind the loop's back: it goes on at once.

        Args:
            action: Which.
        """
        if self._log is not None:
            asyncio.get_running_loop().run_in_executor(None, partial(self._log.note, action, self._on))


def _asked(log: AuditLog, action: str, on: str, by: dict[str, str | int]) -> str:
    try:
        return log.begin(action, on, by)
    except HeadraceError as error:
        _log.error("%s is not told: %s", action, error.message)
        return ""
