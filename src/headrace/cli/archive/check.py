"""``headrace archive check``: check an archive's settings, and everything that they name."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import ConfigError, HeadraceError
from headrace.base.terminal import counted, table
from headrace.cli import common
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.archive.model.archive_toml import ArchiveConfig, SpaceSettings, TableColumn
    from headrace.archive.model.catalog import SpaceRecord, SpaceVersion

_OTHERS = "each process has its own; fine where one server does everything (fill = true)"


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = common.add(
        words,
        common.Verb(
            name="check",
            help="check an archive.toml",
            description="Read the settings of an archive, and open everything that they name: the store, "
            "the queue, and each embedder, which takes as long as loading its model.",
            examples="examples:\n  headrace archive check\n"
            "  headrace archive check --archive shop/archive.toml --json",
            failure="the store or the queue does not answer now",
            run=run,
        ),
    )
    archive_options.add_archive(parser)


@dataclass(frozen=True)
class _Found:
    """Result of checking one part of an archive.

    Attributes:
        part: Name of the part, such as ``store`` or ``embedders.minilm``.
        told: Description of the part, or the problem and its fix.
        code: The exit code for this part alone.
    """

    part: str
    told: str
    code: int = common.DONE


class _Made(NamedTuple):
    """The dimension and fingerprint of an embedder's vectors."""

    dimension: int
    fingerprint: str


def run(options: argparse.Namespace) -> int:
    """Check all parts, even after one is wrong."""
    config = archive_options.settings_of(options)
    found = list(_check(config, archive_options.base_of(options)))
    code = max(one.code for one in found)
    if options.json:
        parts = [{"part": one.part, "is_ok": one.code == common.DONE, "told": one.told} for one in found]
        common.print_json({"archive": str(options.archive), "is_ok": code == common.DONE, "parts": parts})
    else:
        words = {common.DONE: "ok", common.FAILED: "no answer", common.WRONG: "wrong"}
        print(table([(one.part, words[one.code], one.told) for one in found]))
    return code


def _check(config: ArchiveConfig, base: Path) -> Iterator[_Found]:
    from headrace.archive.model.archive_toml import table_column  # noqa: PLC0415 - not needed to list the verbs
    from headrace.archive.model.catalog import SpaceRecord  # noqa: PLC0415 - as above

    records = {name: SpaceRecord() for name in config.spaces}
    yield _tried("store", lambda: _store(config, records))
    yield _tried("queue", lambda: _queue(config))
    made: dict[str, _Made] = {}
    for name in sorted({space.embedder for space in config.spaces.values()} - {""}):
        check = functools.partial(_embedder, config, name, base, made)
        yield _tried(f"embedders.{name}", check)
    for name in sorted(set(config.embedders) - {space.embedder for space in config.spaces.values()}):
        yield _tried(f"embedders.{name}", functools.partial(_unused, config, name))
    for name, space in config.spaces.items():
        if space.is_table:
            yield _tried(f"tables.{name}", functools.partial(_table, space, records[name]))
        else:
            embedder = made.get(space.embedder)
            yield _tried(f"spaces.{name}", functools.partial(_space, space, records[name], embedder))
            if source := table_column(space.content):
                content = functools.partial(_content, source, records.get(source.table, SpaceRecord()))
                yield _tried(f"spaces.{name}.content", content)


def _tried(part: str, check: Callable[[], str]) -> _Found:
    try:
        return _Found(part, check())
    except HeadraceError as error:
        return _Found(part, error.message, common.exit_code(error))


def _store(config: ArchiveConfig, records: dict[str, SpaceRecord]) -> str:
    """Open the store, and read the records of the spaces."""
    from headrace.archive.model.catalog import Catalog  # noqa: PLC0415 - not needed to list the verbs
    from headrace.storage.opening import open_store  # noqa: PLC0415 - not needed to list the verbs

    store = open_store(config.store)
    try:
        records.update((name, Catalog(store).read(name)) for name in config.spaces)
    finally:
        store.close()
    return _kind(config.store)


def _queue(config: ArchiveConfig) -> str:
    from headrace.storage.opening import open_queue  # noqa: PLC0415 - not needed to list the verbs

    queue = open_queue(config.queue)
    try:
        depth = queue.depth().messages
    finally:
        queue.close()
    return f"{_kind(config.queue)}; {counted(depth, 'key')} {'waits' if depth == 1 else 'wait'}"


def _kind(settings: object) -> str:
    kind = str(settings.__struct_config__.tag)  # type: ignore[attr-defined]
    path = getattr(settings, "path", None)
    return f"{kind}, {path}" if path is not None else f"{kind}: {_OTHERS}" if kind == "memory" else kind


def _embedder(config: ArchiveConfig, name: str, base: Path, made: dict[str, _Made]) -> str:
    from headrace.archive.embedders.embedder import ModelSettings  # noqa: PLC0415
    from headrace.archive.operations.open_archive import (  # noqa: PLC0415 - not needed to list the verbs
        embedder_settings,
        open_one_embedder,
    )

    settings = embedder_settings(name, config.embedders.get(name), config.embedders)
    if isinstance(settings, ModelSettings) and not settings.url:
        return f"the model {settings.model!r} of the server itself; not checked, because no server runs here"
    embedder = open_one_embedder(config, name, base)
    try:
        made[name] = _Made(embedder.dimension, embedder.fingerprint)
    finally:
        embedder.close()
    return f"vectors of {made[name].dimension} numbers"


def _unused(config: ArchiveConfig, name: str) -> str:
    from headrace.archive.operations.open_archive import embedder_settings  # noqa: PLC0415 - not needed to list the verbs

    embedder_settings(name, config.embedders[name])
    return "no space uses it"


def _table(settings: SpaceSettings, record: SpaceRecord) -> str:
    from headrace.archive.model.columns import fingerprint, row_dtype  # noqa: PLC0415 - not needed to list the verbs

    columns = settings.columns or ()
    version = record.version(record.default)
    if not columns and version is None:
        return "no columns yet; headrace archive load takes them from a file"
    of = f"version {version.number}" if version is not None and not columns else "archive.toml"
    columns = columns or (version.columns if version is not None else ())
    told = f"{counted(len(columns), 'column')}, {row_dtype(columns).itemsize} bytes a row, of {of}"
    if version is not None and version.fingerprint != fingerprint(columns):
        told += (
            f"; version {version.number} answers, with other columns: headrace archive load makes a new one"
        )
    return told


def _content(source: TableColumn, record: SpaceRecord) -> str:
    from headrace.archive.filling.table_contents import missing_column_reason, text_column  # noqa: PLC0415 - not needed to list the verbs

    if text_column(record, source) is None:
        if record.default:
            raise ConfigError(missing_column_reason(record, source))
        return missing_column_reason(record, source)
    return f"from the column {source.column} of the table {source.table}"


def _space(settings: SpaceSettings, record: SpaceRecord, made: _Made | None) -> str:
    """Check a space's settings against its embedder, the stored version, and its own files."""
    expected = made.dimension if made is not None else settings.dimension
    if settings.dimension not in (0, expected):
        told = f"expected {expected}, the dimension of {settings.embedder!r}, got {settings.dimension}"
        raise ConfigError(f"dimension: {told}; leave it out")
    fingerprint = made.fingerprint if made is not None else None if settings.embedder else ""
    version = record.made_by(fingerprint) if fingerprint is not None else None
    if version is not None:
        _check_version(settings, version)
        expected = version.dimension
    if expected:
        _check_oov(settings, expected)
    source = f"embedded by {settings.embedder}" if settings.embedder else "only by put"
    numbers = f", {expected} numbers" if expected else ""
    unseen = "" if expected or settings.oov in ("zeros", "mean") else "; the oov file was not checked"
    return f"{source}{numbers} of {settings.dtype}{unseen}"


def _check_version(settings: SpaceSettings, version: SpaceVersion) -> None:
    """Refuse settings whose dimension or dtype differs from the version's."""
    for name, got, there in (
        ("dimension", settings.dimension or version.dimension, version.dimension),
        ("dtype", settings.dtype, version.dtype),
    ):
        if got != there:
            raise ConfigError(
                f"{name}: expected {there}, as in version {version.number}, got {got}; stored vectors are "
                "not converted: restore the setting, or start a new space"
            )


def _check_oov(settings: SpaceSettings, dimension: int) -> None:
    from headrace.archive.model.catalog import SpaceVersion  # noqa: PLC0415 - not needed to list the verbs
    from headrace.archive.model.oov import oov_vector  # noqa: PLC0415 - as above

    version = SpaceVersion(
        number=0, embedder="", fingerprint="", dimension=dimension, dtype=settings.dtype, created=0.0
    )
    oov_vector(settings.oov, version)
