"""Add keys to a key file, or remove some; the result is checked by reading it.

Comments are kept, except those between the ``[[key]]`` line of a removed key and the next table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from headrace.access.caller import USUAL_PRIORITIES
from headrace.access.key_file import KeyEntry, KeyFile, parse_keys
from headrace.base.errors import Conflict

NEW_FILE = """# Keys of this server's callers. `headrace key new` and `revoke` edit this file, and so may you.
# It contains only the digests of the keys, never the keys.
"""
_KEY_BEGINS = re.compile(r"^[ \t]*\[\[[ \t]*key[ \t]*\]\]", re.MULTILINE)
_TABLE_BEGINS = re.compile(r"^[ \t]*\[", re.MULTILINE)


def with_key(text: str, entry: KeyEntry, where: str) -> str:
    """Return a file with one more key, at its end.

    Args:
        text: Content of the file.
        entry: Key to add.
        where: Name of the file, for errors.

    Raises:
        ConfigError: The file is invalid already.
        Conflict: It is written in a way that does not allow adding a key.
    """
    before = parse_keys(text, where)
    made = f"{text.rstrip()}\n\n{_block(entry)}"
    return _read_back(made, (*before.key, entry), where)


def without_keys(text: str, ids: Collection[str], where: str) -> str:
    """Return a file without some keys.

    Args:
        text: Content of the file.
        ids: Public ids of the keys to remove.
        where: Name of the file, for errors.

    Raises:
        ConfigError: The file is invalid already.
        Conflict: It is written in a way that does not allow cutting them out.
    """
    before = parse_keys(text, where)
    pieces, last = [], 0
    for number, begins in enumerate(_KEY_BEGINS.finditer(text)):
        after = _TABLE_BEGINS.search(text, begins.end())
        ends = len(text) if after is None else after.start()
        if number < len(before.key) and before.key[number].id in ids:
            pieces.append(text[last : begins.start()])
            last = ends
    left = [entry for entry in before.key if entry.id not in ids]
    return _read_back("".join([*pieces, text[last:]]), left, where)


def _read_back(made: str, expected: Iterable[KeyEntry], where: str) -> str:
    if parse_keys(made, where) != KeyFile(key=tuple(expected)):
        raise Conflict(f"{where} has a form that cannot be changed automatically; change it with an editor")
    return made


def _block(entry: KeyEntry) -> str:
    lines = ["[[key]]", f'name = "{entry.name}"', f'id = "{entry.id}"', f'digest = "{entry.digest}"']
    lines += [f"{key} = {_list(getattr(entry, key))}" for key in ("verbs", "models", "spaces")]
    if entry.requests_per_second:
        lines.append(f"requests_per_second = {entry.requests_per_second!r}")
    if entry.rows_per_second:
        lines.append(f"rows_per_second = {entry.rows_per_second!r}")
    if entry.burst_seconds != 1.0:
        lines.append(f"burst_seconds = {entry.burst_seconds!r}")
    if entry.concurrent_requests:
        lines.append(f"concurrent_requests = {entry.concurrent_requests}")
    if entry.priorities != USUAL_PRIORITIES:
        lines.append(f"priorities = [{', '.join(map(str, entry.priorities))}]")
    if entry.expires is not None:
        lines.append(f"expires = {entry.expires:%Y-%m-%dT%H:%M:%SZ}")
    return "\n".join(lines) + "\n"


def _list(texts: Iterable[str]) -> str:
    quoted = ", ".join('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts)
    return f"[{quoted}]"
