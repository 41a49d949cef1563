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
from headrace.errors import HeadraceError
from headrace.terminal import table

if TYPE_CHECKING:
    from headrace.archive.config import ArchiveConfig

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
    yield _tried("store", lambda: _store(config))
    yield _tried("queue", lambda: _queue(config))
    dimensions: dict[str, int] = {}
    for name in sorted({space.embedder for space in config.spaces.values()} - {""}):
        check = functools.partial(_embedder, config, name, base, dimensions)
        yield _tried(f"embedders.{name}", check)
    for name in sorted(set(config.embedders) - {space.embedder for space in config.spaces.values()}):
        yield _Found(f"embedders.{name}", "no space uses it")
    for name in config.spaces:
        yield _space(config, name, dimensions)


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


def _space(config: ArchiveConfig, name: str, dimensions: dict[str, int]) -> _Found:
    settings = config.spaces[name]
    made = dimensions.get(settings.embedder, settings.dimension)
    if settings.dimension not in (0, made):
        told = f"dimension: expected {made}, as {settings.embedder!r} makes them, got {settings.dimension}"
        return _Found(f"spaces.{name}", f"{told}; leave it out", verbs.WRONG)
    source = f"embedded by {settings.embedder}" if settings.embedder else "only by put"
    numbers = f", {made} numbers" if made else ""
    return _Found(f"spaces.{name}", f"{source}{numbers} of {settings.dtype}")
