"""``headrace archive check``: say what is wrong with an archive, as it is set."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import verbs
from headrace.cli.archiving import opened
from headrace.errors import ConfigError, HeadraceError
from headrace.terminal import table

if TYPE_CHECKING:
    from headrace.archive.catalog import SpaceRecord
    from headrace.archive.config import ArchiveConfig
    from headrace.archive.contents import TableColumn

_A_RECORD = "check"
_OTHERS = "each process has its own; fine where one server does everything (fill = true)"


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = verbs.add(
        words,
        verbs.Verb(
            name="check",
            help="say what is wrong with an archive.toml",
            description="Read the settings of an archive, and open all that they name: the store, the queue, "
            "and each embedder, which takes as long as loading its model.",
            examples="examples:\n  headrace archive check\n"
            "  headrace archive check --archive shop/archive.toml --json",
            failure="the store or the queue does not answer now",
            run=run,
        ),
    )
    opened.add_archive(parser)


@dataclass(frozen=True)
class _Found:
    """What came of one part of an archive.

    Attributes:
        part: Which, as ``store`` or ``embedders.minilm``.
        told: What it is, or what is wrong with it and the way out.
        code: The exit code that it alone would give.
    """

    part: str
    told: str
    code: int = verbs.DONE


def run(options: argparse.Namespace) -> int:
    """Check part after part; one that is wrong keeps no other from being looked at."""
    config = opened.settings_of(options)
    found = list(_check(config, opened.base_of(options)))
    code = max(one.code for one in found)
    if options.json:
        parts = [{"part": one.part, "is_ok": one.code == verbs.DONE, "told": one.told} for one in found]
        verbs.print_json({"archive": str(options.archive), "is_ok": code == verbs.DONE, "parts": parts})
    else:
        words = {verbs.DONE: "ok", verbs.FAILED: "no answer", verbs.WRONG: "wrong"}
        print(table([(one.part, words[one.code], one.told) for one in found]))
    return code


def _check(config: ArchiveConfig, base: Path) -> Iterator[_Found]:
    from headrace.archive.contents import table_column  # noqa: PLC0415 - not for the list of verbs

    yield _tried("store", lambda: _store(config))
    yield _tried("queue", lambda: _queue(config))
    dimensions: dict[str, int] = {}
    for name in sorted({space.embedder for space in config.spaces.values()} - {""}):
        check = functools.partial(_embedder, config, name, base, dimensions)
        yield _tried(f"embedders.{name}", check)
    for name in sorted(set(config.embedders) - {space.embedder for space in config.spaces.values()}):
        yield _Found(f"embedders.{name}", "no space uses it")
    for name, space in config.spaces.items():
        if space.is_table:
            yield _tried(f"tables.{name}", functools.partial(_table, config, name))
        else:
            yield _space(config, name, dimensions)
            if source := table_column(space.content):
                yield _tried(f"spaces.{name}.content", functools.partial(_content, config, source))


def _tried(part: str, check: Callable[[], str]) -> _Found:
    try:
        return _Found(part, check())
    except HeadraceError as error:
        return _Found(part, error.message, verbs.exit_code(error))


def _store(config: ArchiveConfig) -> str:
    from headrace.stores.opening import open_store  # noqa: PLC0415 - not for the list of verbs

    store = open_store(config.store)
    try:
        store.read(_A_RECORD)
    finally:
        store.close()
    return _kind(config.store)


def _queue(config: ArchiveConfig) -> str:
    from headrace.queues.opening import open_queue  # noqa: PLC0415 - not for the list of verbs

    queue = open_queue(config.queue)
    try:
        depth = queue.depth().messages
    finally:
        queue.close()
    return f"{_kind(config.queue)}; {depth} keys wait"


def _kind(settings: object) -> str:
    kind = str(settings.__struct_config__.tag)  # type: ignore[attr-defined]
    path = getattr(settings, "path", None)
    return f"{kind}, {path}" if path is not None else f"{kind}: {_OTHERS}" if kind == "memory" else kind


def _embedder(config: ArchiveConfig, name: str, base: Path, dimensions: dict[str, int]) -> str:
    from headrace.archive.opening import open_one_embedder  # noqa: PLC0415 - not for the list of verbs

    embedder = open_one_embedder(config, name, base)
    try:
        dimensions[name] = embedder.dimension
    finally:
        embedder.close()
    return f"vectors of {dimensions[name]} numbers"


def _record(config: ArchiveConfig, space: str) -> SpaceRecord:
    """What is decided about a space; nothing is made of one that is new."""
    from headrace.archive.catalog import Catalog  # noqa: PLC0415 - not for the list of verbs
    from headrace.stores.opening import open_store  # noqa: PLC0415 - the same

    store = open_store(config.store)
    try:
        return Catalog(store).read(space)
    finally:
        store.close()


def _table(config: ArchiveConfig, name: str) -> str:
    from headrace.archive.columns import fingerprint, row_dtype  # noqa: PLC0415 - not for the list of verbs

    columns, record = config.spaces[name].columns or (), _record(config, name)
    version = record.version(record.default)
    if not columns and version is None:
        return "no columns yet; headrace archive load has them from a file"
    of = f"version {version.number}" if version is not None and not columns else "archive.toml"
    columns = columns or (version.columns if version is not None else ())
    told = f"{len(columns)} columns, {row_dtype(columns).itemsize} bytes a row, of {of}"
    if version is not None and version.fingerprint != fingerprint(columns):
        told += f"; version {version.number} answers, which has others: headrace archive load makes a new one"
    return told


def _content(config: ArchiveConfig, source: TableColumn) -> str:
    from headrace.archive.table_contents import text_column, told  # noqa: PLC0415 - not for the list of verbs

    record = _record(config, source.table)
    if text_column(record, source) is None:
        if record.default:
            raise ConfigError(told(record, source))
        return told(record, source)
    return f"from the column {source.column} of the table {source.table}"


def _space(config: ArchiveConfig, name: str, dimensions: dict[str, int]) -> _Found:
    settings = config.spaces[name]
    made = dimensions.get(settings.embedder, settings.dimension)
    if settings.dimension not in (0, made):
        told = f"dimension: expected {made}, as {settings.embedder!r} makes them, got {settings.dimension}"
        return _Found(f"spaces.{name}", f"{told}; leave it out", verbs.WRONG)
    source = f"embedded by {settings.embedder}" if settings.embedder else "only by put"
    numbers = f", {made} numbers" if made else ""
    return _Found(f"spaces.{name}", f"{source}{numbers} of {settings.dtype}")
