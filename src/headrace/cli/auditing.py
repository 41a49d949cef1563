"""What verbs that decide something tell in an audit log: who ran them on this machine, and how it ended."""

from __future__ import annotations

import argparse
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.audit import Ending

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
        help="record in this audit log who does this, before and after; what cannot be recorded is not done "
        "(default none)",
    )


@contextmanager
def told(options: argparse.Namespace, action: str, on: object) -> Iterator[Ending]:
    """Tell of what is done within, if somebody wants that.

    Args:
        options: Of the verb.
        action: What it does.
        on: To what.

    Yields:
        How it ends, where that is not well and no error says so.

    Raises:
        ConfigError: The log cannot be opened.
        Unavailable: It cannot be written; nothing was done.
    """
    from headrace.audit import AuditLog, Ending  # noqa: PLC0415 - not for the list of verbs

    if options.audit_file is None:
        yield Ending()
        return
    with AuditLog(options.audit_file).telling(action, str(on), _user()) as ending:
        yield ending


def _user() -> dict[str, str | int]:
    uid = os.getuid()
    by: dict[str, str | int] = {"uid": uid}
    with suppress(KeyError):  # of a container, mostly
        by["user"] = pwd.getpwuid(uid).pw_name
    if uid == 0 and (before := os.environ.get(_SUDO)):
        by["sudo_user"] = before[:64]
    return by
