"""``headrace archive versions``, ``default`` and ``drop``: show, select and remove the versions of spaces."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.base.errors import InvalidRequest
from headrace.base.terminal import counted, table
from headrace.cli import auditing, common, models, number_types
from headrace.cli.archive import archive_options

if TYPE_CHECKING:
    from headrace.archive.lookup.archive import Archive
    from headrace.archive.model.catalog import SpaceRecord

_HEAD = ("space", "version", "", "embedder", "numbers", "dtype", "made", "")
_number = number_types.whole("N", least=1, most=2**31)


def add_to(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs to the command line."""
    _add_versions(words)
    _add_default(words)
    _add_drop(words)


def _add_versions(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = common.add(
        words,
        common.Verb(
            name="versions",
            help="show the versions of the spaces",
            description="Show the versions of all spaces and feature tables, or of one: what made them, the "
            "length of their vectors, their columns, and which one answers lookups that name no version.",
            examples="examples:\n  headrace archive versions\n  headrace archive versions titles --json",
            failure="the store does not answer",
            run=run_versions,
        ),
    )
    parser.add_argument("space", metavar="SPACE", nargs="?", help="a space (default: all)")
    archive_options.add_archive(parser)


def _add_default(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = common.add(
        words,
        common.Verb(
            name="default",
            help="show or move the default version of a space",
            description="Change the version of a space or a feature table that answers lookups that name no "
            "version, for example after a faulty load or with a faulty encoder; without N, show the "
            "versions. The change is refused if that version lacks keys of the current default. Servers and "
            "fillers follow within a second (cache.poll_seconds); models still get the versions that they "
            "were trained on.",
            examples="examples:\n  headrace archive default users\n  headrace archive default users 1\n"
            "  headrace archive default titles 2 --fewer-keys --json\n\n"
            "The check reads all keys of the current default, unless many are missing; --fewer-keys skips "
            "it.",
            failure="the version lacks keys of the default, or the store does not answer",
            run=run_default,
        ),
    )
    archive_options.add_space(parser)
    parser.add_argument(
        "number", metavar="N", nargs="?", help="the new default version (without N, show the versions)"
    )
    archive_options.add_archive(parser)
    auditing.add_option(parser)
    parser.add_argument(
        "--fewer-keys",
        action="store_true",
        help="change the default even if the version lacks some of its keys",
    )


def _add_drop(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = common.add(
        words,
        common.Verb(
            name="drop",
            help="remove a version of a space that no model needs",
            description="Remove a version of a space with its vectors, their history and its dead letters. "
            "The default version cannot be removed, nor a version that a version of a model was trained on, "
            "according to the manifests below the directories.",
            examples="examples:\n  headrace archive drop images 2 --models models\n"
            "  headrace archive drop images 2 --models models --models old-models --json\n\n"
            "If it is stopped or killed, run it again.",
            failure="a version of a model needs it, it is the default, or the store does not answer",
            run=run_drop,
        ),
    )
    archive_options.add_space(parser)
    parser.add_argument("number", metavar="N", help="the version")
    archive_options.add_archive(parser)
    auditing.add_option(parser)
    parser.add_argument(
        "--models",
        metavar=models.DIRECTORY,
        type=Path,
        action="append",
        required=True,
        help="a directory of models that may need it; may be repeated",
    )


def run_versions(options: argparse.Namespace) -> int:
    """Print one line per version."""
    with archive_options.open_archive_of(options) as archive:
        spaces = [options.space] if options.space is not None else list(archive.config.spaces)
        records = {space: _stored_record(archive, space) for space in spaces}
    if options.json:
        common.print_json({"spaces": [_described_space(space, record) for space, record in records.items()]})
    else:
        print(_listed(records))
    return common.DONE


def run_default(options: argparse.Namespace) -> int:
    """Show the versions, or change the default."""
    from headrace.archive.operations.space_versions import move_default  # noqa: PLC0415 - not needed to list the verbs

    number = options.number and _number(options.number)
    if options.fewer_keys and not number:
        raise InvalidRequest("expected a version to move to, as in: default SPACE N", field="N")
    with archive_options.open_archive_of(options) as archive:
        before = _stored_record(archive, options.space)
        if number:
            with auditing.audited(options, "default", f"{options.space} version {number}"):
                after = move_default(archive, options.space, number, may_lose=options.fewer_keys)
        else:
            after = before
    if options.json:
        said = _described_space(options.space, after)
        common.print_json(said | {"before": before.default or None})
    elif not number:
        print(_listed({options.space: after}))
    elif before.default == number:
        print(f"{options.space}: version {number} answers, as before")
    else:
        print(f"{options.space}: version {number} answers now, previously {before.default or 'none'}")
    return common.DONE


def run_drop(options: argparse.Namespace) -> int:
    """Drop the version, unless it is needed."""
    from headrace.archive.operations.space_versions import check_unneeded, drop_version  # noqa: PLC0415 - not needed to list the verbs

    number = _number(options.number)
    with archive_options.open_archive_of(options) as archive:
        looked_at = check_unneeded(options.space, number, options.models)
        with auditing.audited(options, "drop", f"{options.space} version {number}"):
            drop_version(archive, options.space, number)
    if options.json:
        common.print_json({"space": options.space, "version": number, "model_versions": looked_at})
    else:
        print(f"dropped version {number} of {options.space}; none of {looked_at} versions of models needs it")
    return common.DONE


def _stored_record(archive: Archive, space: str) -> SpaceRecord:
    """Return a space's record from the store, as this process's cached copy may be empty.

    Raises:
        NotFound: There is no such space.
        Unavailable: The store does not answer.
    """
    archive.record(space)  # raises NotFound, with the existing spaces
    return archive.catalog.read(space)


def _listed(records: Mapping[str, SpaceRecord]) -> str:
    """Return a table of the versions of spaces."""
    rows = [row for space, record in records.items() for row in _rows(space, record)]
    return table([_HEAD, *rows], right=(1, 4))


def _described_space(space: str, record: SpaceRecord) -> dict[str, object]:
    """Return a space with its versions as an object for JSON."""
    from headrace.archive.model.columns import described  # noqa: PLC0415 - not needed to list the verbs

    return {
        "space": space,
        "default": record.default or None,
        "versions": [
            {
                "version": one.number,
                "embedder": one.embedder or None,
                "fingerprint": one.fingerprint or None,
                "dimension": one.dimension,
                "dtype": one.dtype,
                "created": _when(one.created),
                "is_full": one.is_full,
                "columns": described(one.columns),
            }
            for one in record.versions
        ],
    }


def _rows(space: str, record: SpaceRecord) -> list[tuple[str, ...]]:
    if not record.versions:
        return [(space, "", "", "", "", "", "", "no version yet")]
    return [
        (
            space,
            str(one.number),
            "default" if one.number == record.default else "",
            one.embedder or ("(load)" if one.columns else "(put)"),
            counted(len(one.columns), "column") if one.columns else str(one.dimension),
            one.dtype,
            _when(one.created),
            "" if one.is_full else "not full yet",
        )
        for one in record.versions
    ]


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
