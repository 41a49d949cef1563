"""Audit log entries of verbs that change something: the local user, the action and its result."""

from __future__ import annotations

import argparse
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.telemetry.audit_log import Ending

_SUDO = "SUDO_USER"


def add_option(parser: argparse._ActionsContainer) -> None:
    """Add the option that names the log.

    Args:
        parser: The verb, or a group of its options.
    """
    parser.add_argument(
        "--audit-file",
        metavar="FILE",
        type=Path,
        help="append the user, the action and its result to this audit log; the action is refused if its "
        "start cannot be logged",
    )


@contextmanager
def audited(options: argparse.Namespace, action: str, on: object) -> Iterator[Ending]:
    """Log the action performed in this context, if the options name an audit log.

    Args:
        options: The verb's options.
        action: Name of the action.
        on: Object of the action.

    Yields:
        The result to log; set it if the action fails without an exception.

    Raises:
        ConfigError: The log cannot be opened.
        Unavailable: The log cannot be written; nothing was done.
    """
    from headrace.telemetry.audit_log import AuditLog, Ending  # noqa: PLC0415 - not needed to list the verbs

    if options.audit_file is None:
        yield Ending()
        return
    with AuditLog(options.audit_file).telling(action, str(on), _user()) as ending:
        yield ending


def _user() -> dict[str, str | int]:
    uid = os.getuid()
    by: dict[str, str | int] = {"uid": uid}
    with suppress(KeyError):  # containers often lack an entry for the uid
        by["user"] = pwd.getpwuid(uid).pw_name
    if uid == 0 and (before := os.environ.get(_SUDO)):
        by["sudo_user"] = before[:64]
    return by
