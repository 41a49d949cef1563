"""Keys for tests: drawn once, with files and gates of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.access.gate import Gate
from headrace.access.keys import KeyEntry, KeyFile, NewKey, as_keys, draw
from headrace.access.permissions import HEALTH, VERBS, Verb

DRAWN: dict[str, NewKey] = {}


def key_of(name: str) -> NewKey:
    """The key of that name, the same one all through the tests."""
    return DRAWN.setdefault(name, draw())


def entry(
    name: str, verbs: Sequence[Verb] = VERBS, models: Sequence[str] = ("*",), spaces: Sequence[str] = ("*",)
) -> KeyEntry:
    """What a file says of it."""
    key = key_of(name)
    return KeyEntry(
        name=name,
        id=key.id,
        digest=key.digest,
        verbs=tuple(verbs),
        models=tuple(models),
        spaces=tuple(spaces),
    )


def gate_of(*entries: KeyEntry, opened: int = HEALTH) -> Gate:
    """A gate that knows them."""
    return Gate(as_keys(KeyFile(key=entries)), opened)


def bearer(name: str) -> tuple[bytes, bytes]:
    """The header with it."""
    return b"authorization", f"Bearer {key_of(name).text}".encode()


def written(file: Path, *entries: KeyEntry) -> Path:
    """A file of them."""
    lines = ["# keys\n"]
    for one in entries:
        lines.append(
            f'[[key]]\nname = "{one.name}"\nid = "{one.id}"\ndigest = "{one.digest}"\n'
            f"verbs = {list(one.verbs)}\nmodels = {list(one.models)}\nspaces = {list(one.spaces)}\n"
        )
    file.write_text("".join(lines), "utf-8")
    return file
